"""Reference of engram_fused_weight: an fp32 product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.engram_fused_weight import EngramFusedWeightSpec


def reference(spec: EngramFusedWeightSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``weight`` in fp32."""
    return {"weight": inputs["weight_hidden"].float() * inputs["weight_embed"].float()}
