"""Dispatch, experts and combine on 8, 16 and 32 simulated ranks against the same layer without any ranks.

The dense layer rounds where the kernels round: products to bf16, the weighted activation to bf16, and the
sum over a token's experts in order of k. Dispatched rows are compared bit by bit.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.ep_group import Group, Rank
from support.ep_records import drawn_routing
from support.kernel_checks import CalcDiff, compare_output, reference_of
from support.scaled_values import scaled_operand

from kaas.kernel_library.families.ep_combine import EpCombineSpec
from kaas.kernel_library.references.number_formats import dequantise, pack_pairs
from kaas.kernel_library.references.scaled_products import operand
from kaas.kernel_library.routing.expert_parallel import ExpertParallelTopology

HIDDEN, INTERMEDIATE, TOPK = 96, 64, 4
CLOSE = CalcDiff(1e-5)


def group_of(ranks: int, *, owned: int = 2, tokens: int = 24, **options: Any) -> Group:
    topology = ExpertParallelTopology(
        ranks=ranks, experts=ranks * owned, topk=TOPK, max_tokens_per_rank=tokens, nodes=max(ranks // 8, 1)
    )
    generator = torch.Generator().manual_seed(ranks)

    def weights(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * shape[-1] ** -0.5).to(torch.bfloat16)

    experts = topology.experts
    return Group(
        topology=topology,
        **{
            "first": weights(experts, 2 * INTERMEDIATE, HIDDEN),
            "second": weights(experts, HIDDEN, INTERMEDIATE),
            **options,
        },
    )


def ranks_of(group: Group, tokens: list[int], routing: list[torch.Tensor] | None = None) -> list[Rank]:
    """Ranks with ``tokens[r]`` random tokens each."""
    generator = torch.Generator().manual_seed(sum(tokens) + 1)
    made = []
    for number, count in enumerate(tokens):
        chosen = drawn_routing(group.topology, count, generator) if routing is None else routing[number]
        biases = {
            name: torch.randn((count, group.hidden), generator=generator).to(torch.bfloat16)
            for name in ("bias0", "bias1")[: group.biases]
        }
        made.append(
            Rank(
                number=number,
                x=torch.randn((count, group.hidden), generator=generator).to(torch.bfloat16),
                topk_idx=chosen,
                topk_weights=torch.rand((count, TOPK), generator=generator),
                biases=biases,
            )
        )
    return made


def run(group: Group, ranks: list[Rank], *, cached: bool = False) -> None:
    group.dispatch(ranks, cached=cached)
    check_dispatched(group, ranks)
    for rank in ranks:
        group.run_experts(rank)
    group.combine(ranks)
    check_combined(group, ranks)


def check_dispatched(group: Group, ranks: list[Rank]) -> None:
    """Every choice of every token has one row on the rank of its expert, with the token's bits and weight."""
    owned = group.topology.experts_per_rank
    found = 0
    for rank in ranks:
        ends = rank.sums["psum_num_recv_tokens_per_expert"].tolist()
        sources = []
        for *rows, source, last in rank.received["recv_src_metadata"].tolist():
            owner, token = divmod(source, group.topology.max_tokens_per_rank)
            sources.append(source)
            sender = ranks[owner]
            assert last == max(k for k, row in enumerate(rows) if row >= 0)
            for k, row in enumerate(rows):
                expert = int(sender.topk_idx[token, k]) - rank.number * owned
                assert (row >= 0) == (0 <= expert < owned)
                if row >= 0:
                    first = 0 if expert == 0 else -(-ends[expert - 1] // 256) * 256
                    assert first <= row < ends[expert]
                    assert (
                        rank.received["recv_x"][row]
                        .view(torch.uint8)
                        .equal(sender.x[token].view(torch.uint8))
                    )
                    assert rank.received["recv_topk_weights"][row] == sender.topk_weights[token, k]
                    if sender.x_scales is not None:
                        assert rank.received["recv_x_scales"][row].equal(sender.x_scales[token])
                    found += 1
        assert sources == sorted(sources)
    assert found == sum(int((rank.topk_idx >= 0).sum()) for rank in ranks)


def check_combined(group: Group, ranks: list[Rank]) -> None:
    spec = EpCombineSpec(
        topology=group.topology,
        hidden=group.hidden,
        biases=group.biases,
        per_rank="here" if group.per_rank else "none",
    )
    for rank in ranks:
        assert rank.out is not None
        inputs = {"y": dense_rows(group, rank), "topk_idx": rank.topk_idx, **rank.biases}
        compare_output(f"out of rank {rank.number}", rank.out, reference_of(spec, inputs)["out"], CLOSE)


def dense_rows(group: Group, rank: Rank) -> torch.Tensor:
    """What every expert makes of every token that chose it, without any dispatch."""
    x, first = dequantised(group, rank)
    y = torch.zeros((len(rank.x), TOPK, group.hidden), dtype=torch.bfloat16)
    for token, k in (rank.topk_idx >= 0).nonzero().tolist():
        expert = int(rank.topk_idx[token, k])
        gate, up = (first[expert] @ x[token]).to(torch.bfloat16).double().chunk(2)
        activated = gate / (1 + (-gate).exp()) * up * rank.topk_weights[token, k].double()
        y[token, k] = (group.second[expert].double() @ activated.to(torch.bfloat16).double()).to(
            torch.bfloat16
        )
    return y


def dequantised(group: Group, rank: Rank) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and first weights in float64."""
    if rank.x_scales is None or group.first_scales is None:
        return rank.x.double(), group.first.double()
    weights = zip(group.first, group.first_scales, strict=True)
    scales = rank.x_scales.view(torch.uint8)
    return dequantise(rank.x, scales, "e4m3"), torch.stack([operand(*one, "e4m3") for one in weights])


def ragged(ranks: int) -> list[int]:
    """No token on one rank, one on another, as many as there may be on a third."""
    return [(0, 1, 24, 7, 13, 2, 19, 5)[rank % 8] for rank in range(ranks)]


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        pytest.param(8, {"biases": 2}, id="8 ranks with biases"),
        pytest.param(
            16, {"per_rank": True, "biases": 1}, id="16 ranks that send sums", marks=pytest.mark.slow
        ),
        pytest.param(32, {}, id="32 ranks", marks=pytest.mark.slow),
    ],
)
def test_a_group_computes_what_the_dense_layer_does(ranks: int, options: dict[str, Any]) -> None:
    group = group_of(ranks, **options)
    run(group, ranks_of(group, ragged(ranks)))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [8, 16])
def test_all_tokens_may_choose_one_expert(ranks: int) -> None:
    group = group_of(ranks, per_rank=True)
    routing = [torch.full((count, TOPK), -1) for count in ragged(ranks)]
    for one in routing:
        one[:, 1] = ranks + 1
    run(group, ranks_of(group, ragged(ranks), routing))


def test_a_single_token_may_be_all_there_is() -> None:
    group = group_of(8, biases=2)
    tokens = [0, 0, 0, 0, 0, 1, 0, 0]
    run(group, ranks_of(group, tokens))


@pytest.mark.slow
def test_several_choices_on_one_rank_are_one_record() -> None:
    group = group_of(8, owned=8, per_rank=True, biases=2)
    routing = [torch.arange(count * TOPK).view(count, TOPK) // 3 % 64 for count in ragged(8)]
    ranks = ranks_of(group, ragged(8), routing)
    run(group, ranks)
    received = sum(len(rank.received["recv_src_metadata"]) for rank in ranks)
    assert received < sum(ragged(8)) * TOPK


def test_a_cached_dispatch_brings_new_tokens_to_the_old_rows() -> None:
    group = group_of(8, biases=2)
    ranks = ranks_of(group, ragged(8))
    run(group, ranks)
    for rank in ranks:
        rank.x, rank.topk_weights = rank.x.flip(0).contiguous(), rank.topk_weights.flip(0).contiguous()
    run(group, ranks, cached=True)


@pytest.mark.slow
def test_scaled_fp8_tokens_arrive_with_their_scales_and_feed_the_scaled_product() -> None:
    hidden, generator = 128, torch.Generator().manual_seed(5)
    drawn = [scaled_operand(2 * INTERMEDIATE, hidden, "e4m3", generator, integers=False) for _ in range(16)]
    group = group_of(
        8,
        dtype="e4m3",
        first=torch.stack([values for values, _ in drawn]),
        first_scales=torch.stack([pack_pairs(scales) for _, scales in drawn]),
        second=(torch.randn((16, hidden, INTERMEDIATE), generator=generator) / 8).to(torch.bfloat16),
    )
    ranks = ranks_of(group, ragged(8))
    for rank in ranks:
        rank.x, scales = scaled_operand(len(rank.x), hidden, "e4m3", generator, integers=False)
        rank.x_scales = scales.contiguous().view(torch.int16)
    run(group, ranks)
