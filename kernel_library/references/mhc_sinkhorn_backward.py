"""Reference of mhc_sinkhorn_backward: automatic differentiation of the forward reference in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.mhc_sinkhorn import sinkhorn

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_sinkhorn_backward import MhcSinkhornBackwardSpec


def reference(spec: MhcSinkhornBackwardSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``x_grad`` in float64."""
    x = inputs["x"].double().detach().requires_grad_()
    with torch.enable_grad():
        y = sinkhorn(x, spec.repeat, spec.eps)
    (x_grad,) = torch.autograd.grad(y, x, inputs["y_grad"].double())
    return {"x_grad": x_grad}
