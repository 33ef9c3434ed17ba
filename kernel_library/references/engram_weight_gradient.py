"""Reference of engram_weight_gradient in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.engram_weight_gradient import EngramWeightGradientSpec


def reference(spec: EngramWeightGradientSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Both updated gradients in float64."""
    total = inputs["grad_weight_partial"].double().sum(0)
    return {
        "grad_weight_hidden": inputs["grad_weight_hidden"].double() + total * inputs["weight_embed"].double(),
        "grad_weight_embed": inputs["grad_weight_embed"].double() + total * inputs["weight_hidden"].double(),
    }
