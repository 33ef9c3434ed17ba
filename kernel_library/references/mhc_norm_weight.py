"""Reference of mhc_norm_weight: one exact product, rounded by whoever compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_norm_weight import MhcNormWeightSpec


def reference(spec: MhcNormWeightSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``merged`` in float64, which holds a product of two fp32 values exactly."""
    return {"merged": inputs["weight"].double() * inputs["norm_weight"].double()}
