"""Reference of topk_groups: sorted scores, one fp32 addition, a stable sort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.topk_groups import TopkGroupsSpec


def reference(spec: TopkGroupsSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``topk_group_idx``, to the bit."""
    best = inputs["scores"].sort(dim=-1, descending=True).values
    worth = best[..., 0] + best[..., 1] if spec.summed == 2 else best[..., 0]
    order = torch.sort(worth, dim=1, descending=True, stable=True).indices
    return {"topk_group_idx": order[:, : spec.topk_groups].to(getattr(torch, spec.index_dtype))}
