"""Reference of mhc_post_backward in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_post_backward import MhcPostBackwardSpec


def reference(spec: MhcPostBackwardSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All four gradients in float64."""
    gradient, x, residual, post, comb = (
        inputs[name].double() for name in ("y_grad", "x", "residual", "post_mix", "comb_mix")
    )
    return {
        "x_grad": (gradient * post.unsqueeze(-1)).sum(1),
        "residual_grad": comb @ gradient,
        "post_mix_grad": (gradient * x.unsqueeze(1)).sum(-1),
        "comb_mix_grad": residual @ gradient.transpose(1, 2),
    }
