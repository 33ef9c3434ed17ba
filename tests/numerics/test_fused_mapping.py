"""fused_mapping on the CPU twin against a stable sort: every place exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.fused_mapping import FusedMappingSpec
from kaas.kernel_library.vector.row_plan import RowTile

MANY_STAGES = FusedMappingSpec(experts=72, topk=6, alignment=16, tile=RowTile(rows=2, stages=2))
NARROW = FusedMappingSpec(experts=9, topk=3, index_dtype="int32")
WIDE_GAPS = FusedMappingSpec(experts=5, topk=2, alignment=1024)


def inputs_of(spec: FusedMappingSpec, tokens: int, *, spare: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(spec.experts + tokens)
    indices = torch.randint(-1, spec.experts, (tokens, spec.topk), generator=generator)
    return with_places(spec, indices.to(getattr(torch, spec.index_dtype)), spare=spare)


def with_places(spec: FusedMappingSpec, indices: torch.Tensor, *, spare: int = 0) -> dict[str, Any]:
    """Inputs with as many places as the aligned experts take, and ``spare`` more."""
    known = indices[(indices >= 0) & (indices < spec.experts)].long()
    counts = torch.bincount(known, minlength=spec.experts)
    places = int((-(-counts // spec.alignment) * spec.alignment).sum())
    return {"topk_idx": indices, "expanded": places + spare}


def check(spec: FusedMappingSpec, cores: int, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    return check_kernel(spec, cores, inputs, sizes={"expanded": inputs["expanded"]})


@pytest.mark.parametrize(
    ("spec", "cores", "tokens", "spare"),
    [
        pytest.param(MANY_STAGES, 4, 411, 0, id="many stages"),
        pytest.param(MANY_STAGES, 4, 1, 3, id="one token"),
        pytest.param(NARROW, 4, 151, 0, id="ragged int32"),
        pytest.param(NARROW, 4, 22, 1500, id="places behind all experts"),
        pytest.param(WIDE_GAPS, 4, 33, 70, id="gaps longer than a round of threads"),
        pytest.param(FusedMappingSpec(experts=300, topk=8, tokens=200), 36, 200, 0, id="idle cores"),
    ],
)
def test_places_are_those_of_a_stable_sort(
    spec: FusedMappingSpec, cores: int, tokens: int, spare: int
) -> None:
    check(spec, cores, inputs_of(spec, tokens, spare=spare))


def test_one_expert_may_take_everything() -> None:
    found = check(NARROW, 4, with_places(NARROW, torch.full((100, 3), 8, dtype=torch.int32)))
    assert found["pos_to_token_topk"].tolist() == list(range(300))
    assert found["expert_start"].tolist() == [0] * 9


def test_places_that_there_is_no_room_for_are_left_out_of_the_maps() -> None:
    inputs = inputs_of(NARROW, 200)
    whole = check(NARROW, 4, inputs)
    room = inputs["expanded"] - 41
    cut = {name: whole[name][:room] if name.startswith("pos_to_") else whole[name] for name in whole}
    short = inputs | {"expanded": room}
    check_kernel(NARROW, 4, short, sizes={"expanded": room}, expected=cut)


def test_indices_of_no_expert_have_no_place() -> None:
    indices = inputs_of(MANY_STAGES, 90)["topk_idx"]
    indices[::2] = -1
    indices[1, 0], indices[1, 1], indices[1, 2] = 72, 2**31 - 1, -(2**31)
    found = check(MANY_STAGES, 4, with_places(MANY_STAGES, indices, spare=40))
    assert (found["token_topk_to_pos"][::2] == -1).all()


@pytest.mark.parametrize("spare", [0, 77])
def test_no_tokens_leave_every_place_empty(spare: int) -> None:
    found = check(MANY_STAGES, 4, inputs_of(MANY_STAGES, 0, spare=spare))
    assert (found["num_tokens_per_expert"] == 0).all()
    assert (found["pos_to_expert"] == -1).all()


def test_places_do_not_depend_on_the_core_count() -> None:
    inputs = inputs_of(NARROW, 500, spare=9)
    for cores in (4, 28):
        check(NARROW, cores, inputs)
