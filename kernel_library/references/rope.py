"""Reference of rope: each pair rotated with the same fused steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.fused_arithmetic import fused_multiply_add

if TYPE_CHECKING:
    from kaas.kernel_library.families.rope import RopeSpec


def reference(spec: RopeSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The updated ``x`` in its dtype."""
    x = inputs["x"].clone()
    tokens, half = len(x), spec.rotary // 2
    positions = torch.arange(tokens) if spec.positions == "none" else inputs["positions"].long()
    angles = inputs["cos_sin"][positions + inputs.get("offset", 0)][:, None, :]
    cosine, sine = angles[..., :half], angles[..., half:]
    start = 0 if spec.part == "first" else spec.width - spec.rotary
    turned = x[..., start : start + spec.rotary]
    if spec.interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., :half], turned[..., half:]
    a, b = first.float().clone(), second.float().clone()
    sign = -1.0 if spec.inverse else 1.0
    first.copy_(fused_multiply_add(a, cosine, -sign * (b * sine)))
    second.copy_(fused_multiply_add(a, sign * sine, b * cosine))
    return {"x": x}
