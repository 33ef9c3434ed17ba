"""Reference of cast_and_back: exact to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaas.kernel_library.references.number_formats import BLOCK
from kaas.kernel_library.references.quantisation import (
    block_magnitudes,
    dequantise_rows,
    scales_of,
    spread,
    store_values,
)

if TYPE_CHECKING:
    from kaas.kernel_library.families.cast_and_back import CastAndBackSpec


def reference(spec: CastAndBackSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The updated ``x`` in its own dtype."""
    x, block = inputs["x"], (1, BLOCK)
    wide = x.float()
    scales, inverse = scales_of(block_magnitudes(wide, block), spec.fmt, spec.round_sf)
    stored = store_values(wide * spread(inverse, block, wide.shape), spec.fmt)
    return {"x": dequantise_rows(stored, spec.fmt, scales).to(x.dtype)}
