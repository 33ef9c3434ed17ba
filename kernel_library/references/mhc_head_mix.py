"""Reference of mhc_head_mix in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_head_mix import MhcHeadMixSpec


def reference(spec: MhcHeadMixSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``mix`` in float64."""
    logits, scale, base = (inputs[name].double() for name in ("logits", "scale", "base"))
    return {"mix": (logits * scale + base).sigmoid() + spec.eps}
