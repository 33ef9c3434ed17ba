"""Reference of rmsnorm: the sum with the residual as it is stored, the rest in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.rmsnorm import RmsNormSpec


def reference(spec: RmsNormSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``y`` in float64 and, with a residual, the updated ``residual`` in the spec's dtype."""
    outputs = {}
    x = inputs["x"]
    if spec.residual:
        x = (x.float() + inputs["residual"].float()).to(x.dtype)
        outputs["residual"] = x
    wide = x.double()
    y = wide / (wide.square().mean(-1, keepdim=True) + spec.eps).sqrt()
    outputs["y"] = y * inputs["weight"].double() if spec.weight else y
    return outputs
