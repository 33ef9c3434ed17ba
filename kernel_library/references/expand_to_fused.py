"""Reference of expand_to_fused: indexing of raw bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.expand_to_fused import ExpandToFusedSpec


def reference(spec: ExpandToFusedSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``out`` and, with scales, ``out_scales``; places that nobody writes hold bytes 0xFF."""
    positions, experts = inputs["token_topk_to_pos"], inputs["pos_to_expert"]
    outputs = {"out": _expanded(inputs["x"], positions, experts)}
    if spec.scales != "none":
        outputs["out_scales"] = _expanded(inputs["x_scales"], positions, experts)
    return outputs


def _expanded(rows: torch.Tensor, positions: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    width = rows.shape[1] * rows.element_size()
    raw = rows.contiguous().view(torch.uint8).view(len(rows), width)
    out = torch.full((len(experts), width), 0xFF, dtype=torch.uint8)
    out[experts < 0] = 0
    for k in range(positions.shape[1]):
        chosen = positions[:, k] >= 0
        out[positions[chosen, k].long()] = raw[chosen]
    return out.view(rows.dtype)
