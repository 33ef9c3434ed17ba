"""Reference of engram_gate_backward: torch differentiates the forward formula in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.engram_gate_backward import EngramGateBackwardSpec


def reference(spec: EngramGateBackwardSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Gradients of x, k and v in bf16, and the partial sums of the weight's in float64.

    What the forward kernel saved does not enter: it is computed again, with its usual eps of 1e-20.
    """
    x, kv = (inputs[name].double().requires_grad_() for name in ("x", "kv"))
    weight = inputs["weight"].double().expand_as(x).clone().requires_grad_()  # one copy for each token
    keys, value = kv[:, :-1], kv[:, -1:]
    dot = (x * weight * keys).sum(-1)
    scaled = dot * _inverse_rms(x) * _inverse_rms(keys) * spec.hidden**-0.5
    root = scaled.abs().clamp(min=spec.clamp).sqrt()
    gate = torch.where(scaled >= 0, root, -root).sigmoid()
    added = gate[..., None] * value
    if spec.image_mask:
        added = torch.where(inputs["image_token_mask"][:, None, None], 0.0, added)
    (x + added).backward(inputs["grad_y"].double())
    partial = torch.zeros((spec.partials, spec.streams, spec.hidden), dtype=torch.float64)
    partial.index_add_(0, torch.arange(len(x)) % spec.partials, weight.grad)
    return {
        "grad_x": x.grad.bfloat16(),
        "grad_kv": kv.grad.bfloat16(),
        "grad_weight_partial": partial,
    }


def _inverse_rms(rows: torch.Tensor) -> torch.Tensor:
    return (rows.square().mean(-1) + 1e-20).rsqrt()
