"""Reference of moe_gate: scores in float64, a stable sort, weights in fp32 in the written order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kaas.kernel_library.families.moe_gate import MoeGateSpec


def scores_of(scoring: str, logits: Tensor) -> Tensor:
    """float64 scores of logits [tokens, experts]."""
    x = logits.double()
    if scoring == "sqrtsoftplus":
        return (x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))).sqrt()
    if scoring == "sigmoid":
        return x.sigmoid()
    return x.softmax(-1) if scoring == "softmax" else x


def ranked_experts(spec: MoeGateSpec, values: Tensor) -> Tensor:
    """The ``topk`` best experts of rows of values, groups left out as the spec says."""
    tokens = values.shape[0]
    if spec.topk_groups < spec.groups:
        grouped = values.view(tokens, spec.groups, -1)
        best = grouped.topk(2, dim=-1).values.sum(-1)
        order = torch.sort(best, dim=1, descending=True, stable=True).indices
        closed = torch.ones((tokens, spec.groups), dtype=torch.bool)
        closed.scatter_(1, order[:, : spec.topk_groups], False)
        values = grouped.masked_fill(closed.unsqueeze(-1), -torch.inf).view(tokens, -1)
    return torch.sort(values, dim=1, descending=True, stable=True).indices[:, : spec.topk]


def reference(spec: MoeGateSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``topk_idx``, ``topk_weights`` and, if asked for, ``unmapped_topk_idx`` and ``scores``."""
    logits = inputs["logits"]
    tokens = logits.shape[0]
    scores = scores_of(spec.scoring, logits)
    values = logits.double() if spec.scoring == "softmax" else scores
    bias = inputs["bias"].double().expand(tokens, -1) if spec.bias else torch.zeros_like(values)
    if spec.image_bias:
        is_image = inputs["image_token_mask"].unsqueeze(1)
        bias = torch.where(is_image, inputs["image_bias"].double(), bias)
    chosen = ranked_experts(spec, values + bias)
    if spec.fixed_routing:
        given = inputs["unmapped_topk_idx"].long()
        given = torch.where((given >= 0) & (given < spec.experts), given, -1)
        chosen = torch.where(inputs["fix_routing_mask"].unsqueeze(1), given, chosen)

    own = scores.float().gather(1, chosen.clamp(min=0)).masked_fill(chosen < 0, 0.0)
    total = torch.full((tokens,), 1e-20)
    for k in range(spec.topk):
        total = total + own[:, k]
    factor = torch.tensor(inputs["routed_scaling_factor"], dtype=torch.float32)
    weights = own / total.unsqueeze(1) * factor

    shared = torch.arange(spec.experts, spec.experts + spec.shared_experts).expand(tokens, -1)
    indices = torch.cat([chosen, shared], 1)
    weights = torch.cat([weights, torch.ones((tokens, spec.shared_experts))], 1)
    if spec.duplicates:
        copy = torch.zeros_like(indices)
        if spec.duplicates > 1:
            seed = inputs["ep_rank"] + 23333 * torch.arange(tokens).unsqueeze(1)
            copy = seed % inputs["logical_count"].long()[indices.clamp(min=0)]
        physical = inputs["to_physical_map"].long()[indices.clamp(min=0), copy]
        indices = torch.where(indices >= 0, physical, -1)
    if spec.mask:
        active = inputs["mask"].unsqueeze(1)
        chosen, indices = torch.where(active, chosen, -1), torch.where(active, indices, -1)
        weights, scores = weights.masked_fill(~active, 0.0), scores.masked_fill(~active, 0.0)

    index_dtype = getattr(torch, spec.index_dtype)
    outputs = {"topk_idx": indices.to(index_dtype), "topk_weights": weights}
    if spec.unmapped:
        outputs["unmapped_topk_idx"] = chosen.to(index_dtype)
    if spec.scores:
        outputs["scores"] = scores
    return outputs
