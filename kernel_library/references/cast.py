"""Reference of cast: exact to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaas.kernel_library.references.number_formats import BLOCK
from kaas.kernel_library.references.quantisation import (
    block_magnitudes,
    dequantise_rows,
    e8m0_of,
    pack_along_columns,
    pack_along_rows,
    read_scales,
    scales_of,
    spread,
    store_values,
)

if TYPE_CHECKING:
    from kaas.kernel_library.families.cast import CastSpec

BLOCKS = {"per_token": (1, BLOCK), "per_block": (BLOCK, BLOCK), "per_channel": (BLOCK, 1)}


def reference(spec: CastSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``out`` in the output format and ``out_scales`` as stored, as far as the spec asks for them."""
    x, block = inputs["x"], BLOCKS[spec.granularity]
    if spec.in_scales == "none":
        wide = x.float()
    else:
        scales = read_scales(inputs["x_scales"], spec.in_scales, spec.in_col_major, spec.hidden // BLOCK)
        wide = dequantise_rows(x, spec.in_dtype, scales)
    if spec.scales == "given":
        inverse = 1.0 / inputs["out_scales"]
        return {"out": store_values(wide * spread(inverse, block, wide.shape), spec.fmt)}
    scales, inverse = scales_of(block_magnitudes(wide, block), spec.fmt, spec.round_sf)
    stored = scales
    if spec.scale_dtype == "e8m0x2":
        pack = pack_along_columns if spec.granularity == "per_channel" else pack_along_rows
        stored = pack(e8m0_of(scales))
    outputs = {"out_scales": stored.T.contiguous() if spec.col_major else stored}
    if spec.scales != "only":
        outputs["out"] = store_values(wide * spread(inverse, block, wide.shape), spec.fmt)
    return outputs
