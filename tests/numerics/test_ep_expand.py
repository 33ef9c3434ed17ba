"""ep_expand on the CPU twin: every received bit in its row, and where it came from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.ep_records import check_on_parts, expand_inputs, expand_sizes
from support.kernel_checks import check_kernel, reference_of

from kaas.kernel_library.families.ep_expand import EpExpandSpec
from kaas.kernel_library.routing.expert_parallel import ExpertParallelTopology
from kaas.kernel_library.vector.row_plan import RowTile

SMALL_STAGES = RowTile(rows=2, stages=2)
TOPOLOGY = ExpertParallelTopology(ranks=8, experts=48, topk=5, max_tokens_per_rank=64, expert_alignment=16)
PLAIN = EpExpandSpec(topology=TOPOLOGY, hidden=96, zero_padding=True, tile=SMALL_STAGES)
SCALED = EpExpandSpec(
    topology=TOPOLOGY, hidden=1056, dtype="e4m3", scale_packs=17, zero_padding=True, tile=SMALL_STAGES
)
BARE = EpExpandSpec(topology=TOPOLOGY, hidden=32, weights=False, tile=SMALL_STAGES)
CACHED = EpExpandSpec(
    topology=TOPOLOGY, hidden=128, dtype="e4m3", scale_packs=2, cached=True, tile=SMALL_STAGES
)
CACHED_BARE = EpExpandSpec(topology=TOPOLOGY, hidden=64, weights=False, cached=True, zero_padding=True)
MANY_EXPERTS = EpExpandSpec(
    topology=ExpertParallelTopology(ranks=4, experts=600, topk=8, max_tokens_per_rank=64, expert_alignment=2),
    hidden=64,
    tile=SMALL_STAGES,
)
LONG_ROWS = EpExpandSpec(
    topology=ExpertParallelTopology(ranks=2, experts=4, topk=2, max_tokens_per_rank=24, expert_alignment=8),
    hidden=7168,
    zero_padding=True,
)
LONG_PARTS = EpExpandSpec(
    topology=ExpertParallelTopology(
        ranks=2, experts=8, topk=3, max_tokens_per_rank=1024, expert_alignment=256
    ),
    hidden=32,
)
RAGGED = [60, 1, 0, 33, 64, 2, 17, 50]


def check(
    spec: EpExpandSpec,
    cores: int,
    tokens: list[int],
    *,
    rank: int = 1,
    spare: int = 0,
    routing: list[torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(tokens) + spec.hidden)
    inputs = expand_inputs(spec, tokens, rank, generator, spare=spare, routing=routing)
    return check_inputs(spec, cores, inputs)


def check_inputs(spec: EpExpandSpec, cores: int, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    outputs = check_kernel(spec, cores, inputs, sizes=expand_sizes(inputs))
    for name, expected in reference_of(spec, inputs).items():  # bit by bit: a NaN is a code like any other
        assert outputs[name].view(torch.uint8).equal(expected.contiguous().view(torch.uint8)), name
    return outputs


@pytest.mark.parametrize(
    ("spec", "cores", "tokens"),
    [
        pytest.param(PLAIN, 4, RAGGED, id="bf16"),
        pytest.param(SCALED, 4, RAGGED, id="e4m3 with an odd number of scales"),
        pytest.param(BARE, 4, [64] * 8, id="without weights and zeros"),
        pytest.param(CACHED, 4, RAGGED, id="cached"),
        pytest.param(CACHED_BARE, 28, RAGGED, id="cached payload only", marks=pytest.mark.slow),
        pytest.param(
            MANY_EXPERTS, 4, [64, 0, 64, 5], id="three registers of experts", marks=pytest.mark.slow
        ),
        pytest.param(LONG_ROWS, 36, [24, 3], id="rows longer than the zeros", marks=pytest.mark.slow),
        pytest.param(LONG_PARTS, 4, [1024, 700], id="parts of several stages", marks=pytest.mark.slow),
    ],
)
def test_records_become_rows_by_expert(spec: EpExpandSpec, cores: int, tokens: list[int]) -> None:
    check(spec, cores, tokens)


@pytest.mark.parametrize("rank", [0, 7])
def test_a_rank_may_receive_one_token(rank: int) -> None:
    first = rank * TOPOLOGY.experts_per_rank
    routing = [torch.full((1 if sender == 5 else 0, 5), -1) for sender in range(8)]
    routing[5][0, 2] = first + 3
    outputs = check(PLAIN, 4, [len(one) for one in routing], rank=rank, routing=routing)
    assert outputs["recv_src_metadata"].tolist() == [[-1, -1, 0, -1, -1, 5 * 64, 2]]


@pytest.mark.parametrize("spec", [PLAIN, CACHED], ids=["counted", "cached"])
def test_a_rank_may_receive_no_token(spec: EpExpandSpec) -> None:
    outputs = check(spec, 4, [0] * 8, spare=3)
    assert (outputs["recv_x"].view(torch.uint8) == 0xFF).all()


def test_all_tokens_may_go_to_one_expert() -> None:
    routing = [torch.full((64, 5), -1) for _ in range(8)]
    for one in routing:
        one[:, 0] = 6 + 4  # the fifth expert of rank 1
    outputs = check(PLAIN, 4, [64] * 8, routing=routing)
    assert outputs["recv_src_metadata"][:, 0].tolist() == list(range(512))


def test_rows_beyond_the_room_are_not_written() -> None:
    generator = torch.Generator().manual_seed(4)
    inputs = expand_inputs(PLAIN, RAGGED, 1, generator)
    inputs["expanded"] -= 37
    check_inputs(PLAIN, 4, inputs)


def test_a_buffer_may_have_room_for_more_records_than_have_come() -> None:
    inputs = expand_inputs(PLAIN, RAGGED, 1, torch.Generator().manual_seed(3), spare=20)
    room = {"received": TOPOLOGY.slots, "expanded": inputs["expanded"]}
    check_kernel(PLAIN, 4, inputs | room, sizes=room)


def test_records_of_a_cached_dispatch_land_where_the_first_ones_did() -> None:
    generator = torch.Generator().manual_seed(6)
    first = EpExpandSpec(topology=TOPOLOGY, hidden=128, dtype="e4m3", scale_packs=2, tile=SMALL_STAGES)
    routing = [torch.randint(-1, 48, (count, 5), generator=generator) for count in RAGGED]
    before = check(first, 4, RAGGED, routing=routing)
    inputs = expand_inputs(CACHED, RAGGED, 1, generator, routing=routing)
    assert inputs["recv_src_metadata"].equal(before["recv_src_metadata"])
    check_inputs(CACHED, 4, inputs)


@pytest.mark.slow
def test_rows_are_the_same_on_every_part() -> None:
    inputs = expand_inputs(PLAIN, RAGGED, 1, torch.Generator().manual_seed(8))
    check_on_parts(PLAIN, inputs, expand_sizes(inputs))
