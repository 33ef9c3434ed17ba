"""ep_pack on the CPU twin: every bit of a record in its place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.ep_records import check_on_parts, drawn_routing, pack_inputs
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.ep_pack import EpPackSpec
from kaas.kernel_library.routing.expert_parallel import ExpertParallelTopology
from kaas.kernel_library.vector.row_plan import RowTile

SMALL_STAGES = RowTile(rows=2, stages=2)
TOPOLOGY = ExpertParallelTopology(ranks=8, experts=64, topk=5, max_tokens_per_rank=160)
PLAIN = EpPackSpec(topology=TOPOLOGY, hidden=96, tile=SMALL_STAGES)
SCALED = EpPackSpec(topology=TOPOLOGY, hidden=1056, dtype="e4m3", scale_packs=17, tile=SMALL_STAGES)
NARROW = EpPackSpec(topology=TOPOLOGY, hidden=64, weights=False, index_dtype="int32", tile=SMALL_STAGES)
CACHED = EpPackSpec(
    topology=TOPOLOGY, hidden=128, dtype="e4m3", scale_packs=2, cached=True, tile=SMALL_STAGES
)
BARE = EpPackSpec(topology=TOPOLOGY, hidden=32, weights=False, cached=True)
WHOLE = EpPackSpec(
    topology=ExpertParallelTopology(ranks=2, experts=64, topk=32, max_tokens_per_rank=40),
    hidden=7168,
    dtype="e4m3",
    scale_packs=112,
)


def inputs_of(spec: EpPackSpec, tokens: int, rank: int = 3) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens + spec.hidden)
    routing = drawn_routing(spec.topology, tokens, generator, dtype=spec.index_dtype)
    return pack_inputs(spec, routing, min(rank, spec.topology.ranks - 1), generator)


@pytest.mark.parametrize(
    ("spec", "cores", "tokens"),
    [
        pytest.param(PLAIN, 4, 150, id="bf16"),
        pytest.param(PLAIN, 4, 1, id="one token"),
        pytest.param(PLAIN, 4, 0, id="no token"),
        pytest.param(SCALED, 4, 90, id="e4m3 with an odd number of scales"),
        pytest.param(NARROW, 28, 150, id="int32 without weights", marks=pytest.mark.slow),
        pytest.param(CACHED, 4, 120, id="cached"),
        pytest.param(BARE, 32, 160, id="payload only", marks=pytest.mark.slow),
        pytest.param(WHOLE, 36, 40, id="a whole row with 32 choices", marks=pytest.mark.slow),
    ],
)
def test_records_are_put_together_in_their_slots(spec: EpPackSpec, cores: int, tokens: int) -> None:
    check_kernel(spec, cores, inputs_of(spec, tokens))


def test_slots_beyond_the_buffer_are_left_out() -> None:
    inputs = inputs_of(PLAIN, 60)
    slots = inputs["dst_slot"]
    inputs["dst_slot"] = torch.where((slots >= 0) & (slots % 2 == 0), slots + 160, slots)
    check_kernel(PLAIN, 4, inputs)


@pytest.mark.slow
def test_records_are_the_same_on_every_part() -> None:
    check_on_parts(SCALED, inputs_of(SCALED, 70))
