"""Reference of mhc_norm_weight_backward in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_norm_weight_backward import MhcNormWeightBackwardSpec


def reference(spec: MhcNormWeightBackwardSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``weight_grad`` and ``norm_weight_grad``, added to what they held, in float64."""
    gradient, weight, norm_weight, of_weight, of_norm = (
        inputs[name].double()
        for name in ("merged_grad", "weight", "norm_weight", "weight_grad", "norm_weight_grad")
    )
    return {
        "weight_grad": of_weight + gradient * norm_weight,
        "norm_weight_grad": of_norm + (gradient * weight).sum(0),
    }
