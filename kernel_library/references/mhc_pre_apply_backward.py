"""Reference of mhc_pre_apply_backward in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_pre_apply_backward import MhcPreApplyBackwardSpec


def reference(spec: MhcPreApplyBackwardSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``x_grad`` and ``mix_grad`` in float64."""
    gradient = inputs["y_grad"].double().unsqueeze(1)
    return {
        "x_grad": inputs["x_grad"].double() + gradient * inputs["mix"].double().unsqueeze(-1),
        "mix_grad": (gradient * inputs["x"].double()).sum(-1),
    }
