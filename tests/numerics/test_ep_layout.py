"""ep_layout on the CPU twin against one token after the other: every count and slot exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.ep_records import check_on_parts, drawn_routing
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.ep_layout import EpLayoutSpec
from kaas.kernel_library.routing.expert_parallel import ExpertParallelTopology
from kaas.kernel_library.vector.row_plan import RowTile

SMALL_STAGES = RowTile(rows=2, stages=2)
"""So few tokens that a core's walk runs longer than its ring."""
EIGHT = EpLayoutSpec(
    topology=ExpertParallelTopology(ranks=8, experts=64, topk=6, max_tokens_per_rank=4096), tile=SMALL_STAGES
)
NARROW = EpLayoutSpec(
    topology=ExpertParallelTopology(ranks=2, experts=6, topk=3, max_tokens_per_rank=4096), index_dtype="int32"
)
WIDE = EpLayoutSpec(
    topology=ExpertParallelTopology(
        ranks=136, experts=408, topk=8, max_tokens_per_rank=512, nodes=17, group_cards=8
    ),
    index_dtype="int32",
    tile=SMALL_STAGES,
)
ALONE = EpLayoutSpec(topology=ExpertParallelTopology(ranks=1, experts=3, topk=1, max_tokens_per_rank=64))
UNEVEN = EpLayoutSpec(
    topology=ExpertParallelTopology(ranks=4, experts=2048, topk=32, max_tokens_per_rank=4096, nodes=2)
)


def inputs_of(spec: EpLayoutSpec, tokens: int, rank: int = 1) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens + spec.topology.ranks)
    routing = drawn_routing(spec.topology, tokens, generator, dtype=spec.index_dtype)
    return {"topk_idx": routing, "rank": min(rank, spec.topology.ranks - 1)}


@pytest.mark.parametrize(
    ("spec", "cores", "tokens"),
    [
        pytest.param(EIGHT, 4, 331, id="more stages than slots"),
        pytest.param(EIGHT, 4, 1, id="one token"),
        pytest.param(EIGHT, 4, 0, id="no token"),
        pytest.param(EIGHT, 4, 129, id="parts of two with the last one short"),
        pytest.param(NARROW, 4, 150, id="int32"),
        pytest.param(WIDE, 4, 140, id="three registers of ranks", marks=pytest.mark.slow),
        pytest.param(ALONE, 36, 40, id="a single rank and choice", marks=pytest.mark.slow),
        pytest.param(UNEVEN, 28, 33, id="512 experts per rank and 32 choices", marks=pytest.mark.slow),
        pytest.param(NARROW, 32, 1500, id="long parts", marks=pytest.mark.slow),
    ],
)
def test_counts_and_slots(spec: EpLayoutSpec, cores: int, tokens: int) -> None:
    check_kernel(spec, cores, inputs_of(spec, tokens))


def test_all_tokens_may_choose_one_expert() -> None:
    inputs = {"topk_idx": torch.full((200, 6), -1), "rank": 7}
    inputs["topk_idx"][:, 4] = 63
    outputs = check_kernel(EIGHT, 4, inputs)
    assert outputs["num_tokens_per_rank"].tolist() == [0] * 7 + [200]
    assert outputs["dst_slot"][:, 4].tolist() == list(range(200))
    assert (outputs["local_topk_idx"][:, 4] == 7).all()


def test_a_token_takes_one_slot_on_a_rank_however_many_experts_it_chose_there() -> None:
    routing = torch.tensor([[0, 1, 7, 8, 3, -1], [9, 2, 10, 15, 40, 41], [63, 63, 63, 63, 63, 63]])
    outputs = check_kernel(EIGHT, 4, {"topk_idx": routing, "rank": 1})
    assert outputs["dst_slot"].tolist() == [
        [0, -1, -1, 0, -1, -1],
        [1, 1, -1, -1, 0, -1],
        [0, -1, -1, -1, -1, -1],
    ]
    assert int(outputs["num_tokens_per_expert"][63]) == 6


def test_masked_and_unknown_choices_count_nowhere() -> None:
    routing = torch.tensor([[-1, 64, -(2**31), 2**31 - 1, 1000, 70]] * 40)
    outputs = check_kernel(EIGHT, 4, {"topk_idx": routing, "rank": 0})
    assert not outputs["num_tokens_per_rank"].any()
    assert (outputs["dst_slot"] == -1).all()


@pytest.mark.slow
def test_slots_are_the_same_on_every_part() -> None:
    outputs = check_on_parts(NARROW, inputs_of(NARROW, 300))
    assert int(outputs["dst_slot"].max()) > 200
