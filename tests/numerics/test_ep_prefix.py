"""ep_prefix on the CPU twin against sums in Python integers: every number exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.ep_records import check_on_parts
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.ep_prefix import EpPrefixSpec
from kaas.kernel_library.routing.expert_parallel import ExpertParallelTopology


def spec_of(ranks: int, owned: int, alignment: int = 256, *, stats: bool = False) -> EpPrefixSpec:
    topology = ExpertParallelTopology(
        ranks=ranks,
        experts=ranks * owned,
        topk=min(4, ranks * owned),
        max_tokens_per_rank=128,
        expert_alignment=alignment,
        nodes=ranks // 8 if ranks % 8 == 0 else 1,
        group_cards=8 if ranks > 8 and ranks % 8 == 0 else 128,
    )
    return EpPrefixSpec(topology=topology, stats=stats)


def inputs_of(spec: EpPrefixSpec, most: int = 90, seed: int = 1) -> dict[str, Any]:
    one, generator = spec.topology, torch.Generator().manual_seed(seed)

    def counts(*shape: int) -> torch.Tensor:
        return torch.randint(0, most, shape, generator=generator).int()

    inputs = {
        "recv_tokens_per_rank": counts(one.ranks),
        "recv_tokens_per_expert": counts(one.ranks, one.experts_per_rank),
    }
    if spec.stats:
        inputs["cumulative_local_expert_recv_stats"] = counts(one.experts_per_rank)
    return inputs


@pytest.mark.parametrize(
    ("ranks", "owned", "alignment", "stats"),
    [
        pytest.param(8, 32, 256, False, id="one register of experts"),
        pytest.param(8, 330, 16, True, id="six registers with statistics"),
        pytest.param(1, 1, 1, True, id="a single rank and expert"),
        pytest.param(136, 3, 128, False, id="three registers of ranks", marks=pytest.mark.slow),
        pytest.param(64, 64, 64, True, id="whole registers", marks=pytest.mark.slow),
        pytest.param(512, 8, 256, False, id="as many ranks as there may be", marks=pytest.mark.slow),
        pytest.param(2, 512, 2, True, id="as many experts as there may be", marks=pytest.mark.slow),
    ],
)
def test_sums_by_rank_and_by_expert(ranks: int, owned: int, alignment: int, stats: bool) -> None:
    spec = spec_of(ranks, owned, alignment, stats=stats)
    check_kernel(spec, 4, inputs_of(spec))


def test_experts_without_tokens_start_where_the_one_before_ends_rounded_up() -> None:
    spec = spec_of(8, 32)
    inputs = inputs_of(spec, most=1)
    inputs["recv_tokens_per_expert"][3, 5] = 257
    outputs = check_kernel(spec, 4, inputs)
    ends = outputs["psum_num_recv_tokens_per_expert"].tolist()
    assert ends == [0] * 5 + [257] + [512] * 26


def test_a_rank_that_receives_nothing_has_zeros_everywhere() -> None:
    spec = spec_of(8, 330, 16, stats=True)
    inputs = inputs_of(spec, most=1)
    for tensor in check_kernel(spec, 4, inputs).values():
        assert not tensor.any()


@pytest.mark.slow
def test_sums_are_the_same_on_every_part() -> None:
    spec = spec_of(8, 70, 32)
    check_on_parts(spec, inputs_of(spec))
