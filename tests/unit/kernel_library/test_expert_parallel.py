"""The topology of a group of ranks, and the layout of a record."""

from __future__ import annotations

import pytest

from kaas.kernel_library.families.ep_expand import EpExpandSpec
from kaas.kernel_library.families.ep_pack import EpPackSpec
from kaas.kernel_library.registry import parse_spec
from kaas.kernel_library.routing.expert_parallel import ExpertParallelTopology
from kaas.proto.errors import InvalidSpec

TOPOLOGY = ExpertParallelTopology(ranks=256, experts=512, topk=8, max_tokens_per_rank=100, nodes=32)


def test_experts_nodes_and_groups_follow_from_the_ranks() -> None:
    assert (TOPOLOGY.experts_per_rank, TOPOLOGY.ranks_per_node, TOPOLOGY.groups) == (2, 8, 2)
    assert TOPOLOGY.slots == 25600


def test_the_most_rows_hold_every_choice_and_every_experts_padding() -> None:
    most = TOPOLOGY.max_expanded
    # A token has at most two choices on a rank of two experts; each expert may end one row into a block.
    assert most % TOPOLOGY.expert_alignment == 0
    assert 2 * 25600 + 2 * 255 <= most < 2 * 25600 + 3 * 256


@pytest.mark.parametrize("ranks", [1, 2, 8, 128])
def test_ranks_of_one_group_need_no_second_stage_of_switches(ranks: int) -> None:
    one = ExpertParallelTopology(ranks=ranks, experts=ranks, topk=1, max_tokens_per_rank=1)
    assert one.groups == 1


def test_a_topology_is_part_of_a_specs_identity() -> None:
    spec = EpPackSpec(topology=TOPOLOGY, hidden=64)
    assert parse_spec(spec.canonical()) == spec
    other = ExpertParallelTopology(
        ranks=256, experts=512, topk=8, max_tokens_per_rank=100, nodes=32, group_cards=64
    )
    assert EpPackSpec(topology=other, hidden=64).canonical() != spec.canonical()


def test_an_illegal_topology_is_refused_before_any_spec() -> None:
    with pytest.raises(InvalidSpec) as refused:
        ExpertParallelTopology(ranks=8, experts=64, topk=4, max_tokens_per_rank=4, expert_alignment=24)
    assert refused.value.details["field"] == "topology.expert_alignment"


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_sender_and_receiver_agree_on_a_record_whose_parts_start_at_blocks(
    weights: bool, cached: bool
) -> None:
    options = {"topology": TOPOLOGY, "hidden": 96, "weights": weights, "cached": cached}
    sent = EpPackSpec(dtype="e4m3", scale_packs=3, **options).record
    assert sent == EpExpandSpec(dtype="e4m3", scale_packs=3, **options).record
    places = [sent.payload_words, sent.scales, sent.meta, sent.words]
    places += [sent.experts, sent.source] if not cached else []
    places += [sent.weights] if weights else []
    assert all(place % 8 == 0 and 0 <= place <= sent.words for place in places)
    assert (sent.experts < 0) == (sent.source < 0) == cached
    assert sent.words == 24 + 8 + 8 * (2 * (not cached) + weights)
