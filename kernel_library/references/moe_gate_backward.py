"""Reference of moe_gate_backward in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kaas.kernel_library.families.moe_gate_backward import MoeGateBackwardSpec


def slope_of(scoring: str, scores: Tensor) -> Tensor:
    """The derivative of float64 scores by their logits."""
    if scoring == "sqrtsoftplus":
        return torch.where(scores > 0, -torch.expm1(-scores * scores) / (2 * scores), 0.0)
    return scores * (1 - scores) if scoring == "sigmoid" else torch.ones_like(scores)


def reference(spec: MoeGateBackwardSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``grad_logits`` in float64."""
    scores, indices = inputs["scores"].double(), inputs["topk_idx"].long()
    tokens = scores.shape[0]
    is_expert = (indices >= 0) & (indices < spec.experts)
    indices = indices.where(is_expert, 0)
    own = scores.gather(1, indices) * is_expert
    grads = inputs["grad_topk_weights"].double().where(is_expert, 0.0)
    dot = (grads * inputs["topk_weights"].double().where(is_expert, 0.0)).sum(1, keepdim=True)
    shares = (inputs["routed_scaling_factor"] * grads - dot) / (own.sum(1, keepdim=True) + 1e-20)
    dense = torch.zeros_like(scores).scatter_add_(1, indices, shares.where(is_expert, 0.0))
    if spec.auxiliary:
        sums = inputs["grad_scores_sum"].double()
        h = sums.repeat_interleave(tokens // sums.shape[0], 0) if tokens else sums[:0]
        total = scores.sum(1, keepdim=True)
        share = (h - (h * scores).sum(1, keepdim=True) / total) / total
        dense = dense + share.where(inputs["mask"].unsqueeze(1), 0.0)
    return {"grad_logits": dense * slope_of(spec.scoring, scores)}
