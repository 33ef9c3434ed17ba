"""Reference of rmsnorm: the sum with the residual as it is stored, the rest in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaas.kernel_library.references.cast_output import cast_output

if TYPE_CHECKING:
    from kaas.kernel_library.families.rmsnorm import RmsNormSpec


def reference(spec: RmsNormSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``y`` in float64, ``rstd`` if wanted; with a residual, the updated ``residual`` in the spec's dtype.

    With a cast, ``y`` and ``y_scales`` are the quantised y, rounded to the spec's dtype; the kernel's own y
    may round the other way here and there.
    """
    outputs = {}
    x = inputs["x"]
    if spec.residual:
        x = (x.float() + inputs["residual"].float()).to(x.dtype)
        outputs["residual"] = x
    wide = x.double()
    rstd = 1 / (wide.square().mean(-1) + spec.eps).sqrt()
    y = wide * rstd[:, None] * spec.out_scale
    if spec.weight:
        y = y * inputs["weight"].double()
    if spec.cast == "none":
        outputs["y"] = y
    else:
        outputs["y"], outputs["y_scales"] = cast_output(spec, y.to(x.dtype))
    if spec.bf16_output:
        outputs["y_bf16"] = y
    if spec.rstd:
        outputs["rstd"] = rstd
    return outputs
