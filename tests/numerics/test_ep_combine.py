"""ep_combine on the CPU twin: fp32 sums in order of k, every bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.ep_records import check_on_parts, drawn_routing
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.ep_combine import BIASES, EpCombineSpec
from kaas.kernel_library.families.reduce_fused import ReduceFusedSpec
from kaas.kernel_library.routing.column_tiles import ColumnTile
from kaas.kernel_library.routing.expert_parallel import ExpertParallelTopology

TOPOLOGY = ExpertParallelTopology(ranks=4, experts=32, topk=6, max_tokens_per_rank=2048)
SMALL = ColumnTile(columns=64, stages=2)


def spec_of(**options: Any) -> EpCombineSpec:
    return EpCombineSpec(topology=TOPOLOGY, **{"hidden": 160, "tile": SMALL, **options})


def inputs_of(spec: EpCombineSpec, tokens: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens + spec.hidden)
    topk = spec.topology.topk

    def drawn(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 3).to(torch.bfloat16)

    inputs: dict[str, Any] = {
        "y": drawn(tokens, topk, spec.hidden),
        "topk_idx": drawn_routing(spec.topology, tokens, generator, dtype=spec.index_dtype),
    }
    return inputs | {name: drawn(tokens, spec.hidden) for name in BIASES[: spec.biases]}


def with_unread_rows(inputs: dict[str, Any]) -> dict[str, Any]:
    """NaN in the rows of choices of no expert."""
    y = inputs["y"].clone()
    y[inputs["topk_idx"] < 0] = torch.nan
    return inputs | {"y": y}


@pytest.mark.parametrize("per_rank", ["none", "here", "sent"])
@pytest.mark.parametrize("biases", [0, 1, 2])
def test_sums_are_formed_in_order(biases: int, per_rank: str) -> None:
    everyday = biases == 2 or per_rank == "none"
    spec = spec_of(biases=biases, per_rank=per_rank, index_dtype="int64" if everyday else "int32")
    check_kernel(spec, 4, with_unread_rows(inputs_of(spec, 90)))


@pytest.mark.parametrize(
    ("options", "cores", "tokens"),
    [
        pytest.param({"per_rank": "here", "biases": 1}, 4, 1, id="one token"),
        pytest.param({"hidden": 7168, "tile": None, "per_rank": "here"}, 28, 60, id="whole rows"),
        pytest.param({"hidden": 64, "per_rank": "sent"}, 4, 1500, id="several batches of choices"),
        pytest.param({"hidden": 32, "biases": 2, "tokens": 70}, 36, 70, id="constant tokens"),
    ],
)
@pytest.mark.slow
def test_sums_of_other_shapes(options: dict[str, Any], cores: int, tokens: int) -> None:
    spec = spec_of(**options)
    check_kernel(spec, cores, with_unread_rows(inputs_of(spec, tokens)))


def test_a_token_of_no_expert_is_its_biases() -> None:
    spec = spec_of(biases=2, per_rank="here")
    inputs = inputs_of(spec, 40)
    inputs["topk_idx"][:] = -1
    outputs = check_kernel(spec, 4, inputs)
    assert outputs["out"].equal((inputs["bias0"].float() + inputs["bias1"].float()).to(torch.bfloat16))


def test_infinities_and_nan_pass_through() -> None:
    spec = spec_of(biases=2, per_rank="here")
    inputs = inputs_of(spec, 40)
    inputs["topk_idx"] = inputs["topk_idx"].abs()
    inputs["y"][::3, 2, ::5] = torch.inf
    inputs["y"][::4, 4, ::7] = -torch.inf
    inputs["bias0"][1::9, 3] = torch.nan
    outputs = check_kernel(spec, 4, inputs)
    assert outputs["out"].isnan().any()
    assert outputs["out"].isinf().any()


def test_rounding_by_rank_shows_where_plain_sums_do_not() -> None:
    """1 + 2^-9 twice on one rank, then 1 on another: rounded at once it is 2, else a step more."""
    plain, here = spec_of(), spec_of(per_rank="here")
    inputs = inputs_of(plain, 3)
    inputs["topk_idx"] = torch.tensor([[0, 1, 2, 9, -1, -1]] * 3)
    inputs["y"][:] = 0
    inputs["y"][:, 0], inputs["y"][:, 1], inputs["y"][:, 2] = 1, 2.0**-9, 2.0**-9
    inputs["y"][:, 3] = -1
    sums = [check_kernel(spec, 4, inputs)["out"] for spec in (plain, here)]
    assert (sums[0].float() == 2.0**-8).all()
    assert (sums[1].float() == 0).all()


def test_sums_sent_by_rank_are_those_formed_here() -> None:
    """The sender's reduce_fused, then "sent", gives the bits of "here"."""
    here, sent = spec_of(biases=2, per_rank="here"), spec_of(biases=2, per_rank="sent")
    inputs = inputs_of(here, 50)
    whole = check_kernel(here, 4, inputs)["out"]
    topk, choices = TOPOLOGY.topk, inputs["topk_idx"]
    rank_of = torch.where(choices >= 0, choices // TOPOLOGY.experts_per_rank, -1)
    y = torch.full_like(inputs["y"], torch.nan)
    sender = ReduceFusedSpec(hidden=160, topk=topk, weights=False)
    for rank in range(TOPOLOGY.ranks):
        places = torch.arange(50 * topk).view(50, topk).where(rank_of == rank, -1).int()
        sums = check_kernel(sender, 4, {"x": inputs["y"].view(-1, 160), "token_topk_to_pos": places})["y"]
        for token, row in enumerate(rank_of.tolist()):
            if rank in row:
                last = max(k for k, owner in enumerate(row) if owner == rank)
                y[token, last] = sums[token]
    assert check_kernel(sent, 4, inputs | {"y": y})["out"].equal(whole)


@pytest.mark.slow
def test_sums_are_the_same_on_every_part() -> None:
    spec = spec_of(biases=1, per_rank="here")
    check_on_parts(spec, inputs_of(spec, 90))
