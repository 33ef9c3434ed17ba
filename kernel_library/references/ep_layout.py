"""Reference of ep_layout: one token after the other, with a counter for every rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.ep_layout import EpLayoutSpec

PARTS = 128


def reference(spec: EpLayoutSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All outputs; parts of the workspace that have no tokens are -1, as bytes 0xFF."""
    one, choices = spec.topology, inputs["topk_idx"].long()
    owned = one.experts_per_rank
    known = (choices >= 0) & (choices < one.experts)
    rank_of = torch.where(known, choices // owned, -1)
    goes = torch.stack([(rank_of == rank).any(1) for rank in range(one.ranks)], 1)
    met = torch.stack([(choices == expert).sum(1) for expert in range(one.experts)], 1)

    slots = torch.full(choices.shape, -1)
    following = [0] * one.ranks
    for token, row in enumerate(rank_of.tolist()):
        for rank in sorted(set(row) - {-1}):
            slots[token, row.index(rank)] = following[rank]
            following[rank] += 1

    local = choices - inputs["rank"] * owned
    here = known & (local >= 0) & (local < owned)
    return {
        "num_tokens_per_rank": goes.sum(0).int(),
        "num_tokens_per_expert": met.sum(0).int(),
        "is_token_in_rank": goes,
        "dst_slot": slots.int(),
        "local_topk_idx": torch.where(here, local, -1).to(inputs["topk_idx"].dtype),
        "rank_counts": _by_part(goes),
        "expert_counts": _by_part(met),
    }


def _by_part(counted: torch.Tensor) -> torch.Tensor:
    sums = torch.full((PARTS, counted.shape[1]), -1)
    for part, rows in enumerate(counted.long().split(max(-(-len(counted) // PARTS), 1))):
        if len(rows):
            sums[part] = rows.sum(0)
    return sums.int()
