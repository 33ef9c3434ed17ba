"""Reference of engram_gate in float64; the new streams are rounded to bf16, as the kernel's are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.engram_gate import EngramGateSpec


def reference(spec: EngramGateSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``y`` (or ``x``) in bf16 and, if saved, ``dot``, ``gate``, ``rstd_x``, ``rstd_k`` in float64."""
    x, kv = inputs["x"].double(), inputs["kv"].double()
    keys, value = kv[:, :-1], kv[:, -1:]
    rstd_x = (x.square().mean(-1) + spec.eps).rsqrt()
    rstd_k = (keys.square().mean(-1) + spec.eps).rsqrt()
    dot = (x * inputs["weight"].double() * keys).sum(-1)
    scaled = dot * rstd_x * rstd_k * spec.hidden**-0.5
    root = scaled.abs().clamp(min=spec.clamp).sqrt()
    gate = torch.where(scaled >= 0, root, -root).sigmoid()
    y = (x + gate[..., None] * value).to(inputs["x"].dtype)
    saved = {"dot": dot, "gate": gate, "rstd_x": rstd_x, "rstd_k": rstd_k}
    if spec.image_mask:
        image = inputs["image_token_mask"]
        y[image] = inputs["x"][image]
        for values in saved.values():
            values[image] = 0.0
    outputs = {"x" if spec.in_place else "y": y}
    return outputs | (saved if spec.save else {})
