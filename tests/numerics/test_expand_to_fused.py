"""expand_to_fused on the CPU twin: every bit in its place, in every schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.fused_positions import fused_positions
from support.kernel_checks import check_kernel, reference_of, tensor_dtype

from kaas.kernel_library.families.expand_to_fused import ExpandToFusedSpec
from kaas.kernel_library.vector.row_plan import RowTile

SMALL_STAGES = RowTile(rows=3, stages=2)
"""So few rows that a core's loop runs many times longer than its ring."""
SPECS = [
    (ExpandToFusedSpec(hidden=576, topk=6, tile=SMALL_STAGES), 4),
    (ExpandToFusedSpec(hidden=1040, topk=1, dtype="fp16"), 32),
    (ExpandToFusedSpec(hidden=144, topk=8, dtype="fp32", tile=SMALL_STAGES), 28),
    (ExpandToFusedSpec(hidden=1552, topk=3, dtype="e4m3", scales="fp32", tile=SMALL_STAGES), 4),
    (ExpandToFusedSpec(hidden=1552, topk=2, dtype="e4m3", scales="fp32", group=128), 36),
    (ExpandToFusedSpec(hidden=7168, topk=8, dtype="e4m3", scales="e8m0x2", tile=SMALL_STAGES), 4),
]
IDS = [f"{spec.dtype}-{spec.hidden}-top{spec.topk}-{spec.scales}-{cores}cores" for spec, cores in SPECS]


def raw(rows: int, columns: int, dtype: str, seed: int) -> torch.Tensor:
    """Any bits at all, NaN payloads included."""
    kind = tensor_dtype(dtype)
    generator = torch.Generator().manual_seed(seed)
    size = (rows, columns * kind.itemsize)
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=generator).view(kind)


def inputs_for(spec: ExpandToFusedSpec, tokens: int) -> dict[str, Any]:
    positions, experts = fused_positions(tokens, spec.topk, seed=tokens)
    inputs = {"x": raw(tokens, spec.hidden, spec.dtype, 1), "token_topk_to_pos": positions}
    inputs["pos_to_expert"] = experts
    if spec.scales != "none":
        inputs["x_scales"] = raw(tokens, spec.scale_columns, spec.scales, 2)
    return inputs


def check(spec: ExpandToFusedSpec, cores: int, inputs: dict[str, Any]) -> None:
    outputs = check_kernel(spec, cores, inputs)
    for name, expected in reference_of(spec, inputs).items():  # bit by bit: a NaN is a code like any other
        assert outputs[name].view(torch.uint8).equal(expected.view(torch.uint8)), name


@pytest.mark.parametrize(("spec", "cores"), SPECS, ids=IDS)
@pytest.mark.parametrize("tokens", [1, 5, 203])
def test_rows_are_copied_to_their_places(spec: ExpandToFusedSpec, cores: int, tokens: int) -> None:
    check(spec, cores, inputs_for(spec, tokens))


def test_positions_arrive_in_more_batches_than_one() -> None:
    check(
        ExpandToFusedSpec(hidden=16, topk=2, tokens=2500),
        4,
        inputs_for(ExpandToFusedSpec(hidden=16, topk=2), 2500),
    )


def test_without_tokens_the_padding_is_still_zeroed() -> None:
    spec, cores = SPECS[0]
    inputs = inputs_for(spec, 0)
    assert len(inputs["pos_to_expert"]) == 8
    check(spec, cores, inputs)


def test_places_of_an_expert_that_no_token_names_keep_what_they_held() -> None:
    spec, cores = SPECS[0]
    inputs = inputs_for(spec, 5)
    inputs["pos_to_expert"] = torch.cat((inputs["pos_to_expert"], torch.tensor([3, 3], dtype=torch.int32)))
    outputs = check_kernel(spec, cores, inputs)
    assert (outputs["out"][-2:].view(torch.uint8) == 0xFF).all()
