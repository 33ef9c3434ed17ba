"""Reference of mhc_expand_backward in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_expand_backward import MhcExpandBackwardSpec


def reference(spec: MhcExpandBackwardSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``x_grad`` in float64."""
    return {"x_grad": inputs["y_grad"].double().sum(1)}
