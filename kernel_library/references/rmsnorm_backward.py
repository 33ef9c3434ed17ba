"""Reference of rmsnorm_backward: float64, from the rstd that the forward pass gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.rmsnorm_backward import RmsNormBackwardSpec

PARTS = 256


def reference(spec: RmsNormBackwardSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``dx``; with a weight also ``partials``, NaN where no rows are left for a part, and ``dweight``."""
    normalised = inputs["x"].double() * inputs["rstd"].double()[:, None]
    dy = inputs["dy"].double() * spec.out_scale
    gradient = dy * inputs["weight"].double() if spec.weight else dy
    mean = (normalised * gradient).mean(-1, keepdim=True)
    dx = (gradient - normalised * mean) * inputs["rstd"].double()[:, None]
    if spec.residual_grad:
        dx = dx + inputs["residual_grad"].double()
    outputs = {"dx": dx}
    if spec.weight:
        summands = normalised * dy
        part_rows = max(-(-len(dy) // PARTS), 1)
        sums = [part.sum(0) for part in summands.split(part_rows)] if len(dy) else []
        outputs["partials"] = torch.full((PARTS, spec.hidden), torch.nan, dtype=torch.float64)
        if sums:
            outputs["partials"][: len(sums)] = torch.stack(sums)
        outputs["dweight"] = summands.sum(0)
        if spec.accumulate:
            outputs["dweight"] = outputs["dweight"] + inputs["dweight"].double()
    return outputs
