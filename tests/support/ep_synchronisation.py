"""Inputs of the expert-parallel kernels for the test that deletes synchronisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from support.ep_records import drawn_routing, expand_inputs, pack_inputs

from kaas.kernel_library.families.ep_combine import EpCombineSpec
from kaas.kernel_library.families.ep_expand import EpExpandSpec
from kaas.kernel_library.families.ep_layout import EpLayoutSpec
from kaas.kernel_library.families.ep_pack import EpPackSpec
from kaas.kernel_library.families.ep_prefix import EpPrefixSpec
from kaas.kernel_library.routing.column_tiles import ColumnTile
from kaas.kernel_library.routing.expert_parallel import ExpertParallelTopology
from kaas.kernel_library.vector.row_plan import RowTile

TWO_BY_TWO = RowTile(rows=2, stages=2)
TOPOLOGY = ExpertParallelTopology(ranks=4, experts=40, topk=3, max_tokens_per_rank=600, expert_alignment=16)
MANY_EXPERTS = ExpertParallelTopology(
    ranks=2, experts=280, topk=3, max_tokens_per_rank=400, expert_alignment=16
)

PREFIX = EpPrefixSpec(
    topology=ExpertParallelTopology(ranks=2, experts=660, topk=3, max_tokens_per_rank=64), stats=True
)
LAYOUT = EpLayoutSpec(
    topology=ExpertParallelTopology(ranks=4, experts=800, topk=3, max_tokens_per_rank=2000), tile=TWO_BY_TWO
)
PACK = EpPackSpec(topology=TOPOLOGY, hidden=96, dtype="e4m3", scale_packs=3, tile=TWO_BY_TWO)
EXPAND = EpExpandSpec(
    topology=MANY_EXPERTS, hidden=96, dtype="e4m3", scale_packs=3, zero_padding=True, tile=TWO_BY_TWO
)
CACHED = EpExpandSpec(topology=TOPOLOGY, hidden=96, cached=True, tile=TWO_BY_TWO)
COMBINE = EpCombineSpec(
    topology=LAYOUT.topology, hidden=64, biases=2, per_rank="here", tile=ColumnTile(columns=64, stages=2)
)
ROOM = {"received": MANY_EXPERTS.slots, "expanded": MANY_EXPERTS.max_expanded}
CACHED_ROOM = {"expanded": TOPOLOGY.max_expanded}
"""As many rows as there may be, whatever is drawn."""


def prefix_inputs(generator: torch.Generator) -> Mapping[str, Any]:
    def counts(*shape: int) -> torch.Tensor:
        return torch.randint(0, 40, shape, generator=generator).int()

    return {
        "recv_tokens_per_rank": counts(2),
        "recv_tokens_per_expert": counts(2, 330),
        "cumulative_local_expert_recv_stats": counts(330),
    }


def layout_inputs(generator: torch.Generator) -> Mapping[str, Any]:
    return {"topk_idx": drawn_routing(LAYOUT.topology, 1500, generator), "rank": 2}


def pack_tokens(generator: torch.Generator) -> Mapping[str, Any]:
    return pack_inputs(PACK, drawn_routing(TOPOLOGY, 150, generator), 1, generator)


def expand_records(generator: torch.Generator) -> Mapping[str, Any]:
    return expand_inputs(EXPAND, [400, 390], 1, generator) | ROOM


def expand_cached(generator: torch.Generator) -> Mapping[str, Any]:
    return expand_inputs(CACHED, [150, 60, 0, 90], 1, generator) | CACHED_ROOM


def combine_rows(generator: torch.Generator) -> Mapping[str, Any]:
    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(torch.bfloat16)

    tokens = 2000
    return {
        "y": drawn(tokens, 3, 64),
        "topk_idx": drawn_routing(COMBINE.topology, tokens, generator),
        "bias0": drawn(tokens, 64),
        "bias1": drawn(tokens, 64),
    }
