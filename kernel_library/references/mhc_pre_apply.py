"""Reference of mhc_pre_apply in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_pre_apply import MhcPreApplySpec


def reference(spec: MhcPreApplySpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``y`` in float64."""
    return {"y": (inputs["x"].double() * inputs["mix"].double().unsqueeze(-1)).sum(1)}
