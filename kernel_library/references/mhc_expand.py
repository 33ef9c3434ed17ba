"""Reference of mhc_expand in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_expand import MhcExpandSpec


def reference(spec: MhcExpandSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``y``, the same bits."""
    return {"y": inputs["x"].unsqueeze(1).repeat(1, spec.streams, 1)}
