"""Reference of normalize_weight: fp32 operations in the written order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.normalize_weight import NormalizeWeightSpec


def reference(spec: NormalizeWeightSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``denominator`` and ``normalized_weights`` in fp32."""
    weights = inputs["topk_weights"]
    total = torch.full(weights.shape[:1], 1e-20)
    for k in range(spec.topk):
        total = total + weights[:, k]
    return {"denominator": total, "normalized_weights": weights / total.unsqueeze(1)}
