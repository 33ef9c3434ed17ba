"""Reference of mhc_norm_mixes_backward: automatic differentiation in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_norm_mixes_backward import MhcNormMixesBackwardSpec


def reference(spec: MhcNormMixesBackwardSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``mixes_grad`` and ``square_sum_grad`` in float64."""
    mixes = inputs["mixes"].double().requires_grad_()
    square_sum = inputs["square_sum"].double().requires_grad_()
    normed = mixes * (square_sum / spec.hidden + spec.eps).rsqrt().unsqueeze(-1)
    normed.backward(inputs["normed_grad"].double())
    return {"mixes_grad": mixes.grad, "square_sum_grad": square_sum.grad}
