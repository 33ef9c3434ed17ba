"""Reference of unique_group_indices: every pair of a token's indices compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.unique_group_indices import UniqueGroupIndicesSpec


def reference(spec: UniqueGroupIndicesSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``group_indices`` without repetitions."""
    indices = inputs["group_indices"]
    same = indices.unsqueeze(2) == indices.unsqueeze(1)
    earlier = torch.ones((spec.topk, spec.topk), dtype=torch.bool).tril(-1)
    repeated = (same & earlier).any(2) & (indices >= 0)
    return {"group_indices": indices.masked_fill(repeated, -1)}
