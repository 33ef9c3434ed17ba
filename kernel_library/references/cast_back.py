"""Reference of cast_back: exact to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.number_formats import BLOCK, decode_values, unpack_pairs
from kaas.kernel_library.references.quantisation import decode_scales, read_scales, spread

if TYPE_CHECKING:
    from kaas.kernel_library.families.cast_back import CastBackSpec

BLOCKS = {"per_token": (1, BLOCK), "per_block": (BLOCK, BLOCK), "per_channel": (BLOCK, 1)}


def reference(spec: CastBackSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``out`` in the spec's dtype."""
    wide, stored = decode_values(inputs["x"], spec.in_dtype).float(), inputs["x_scales"]
    if spec.granularity == "per_channel" and spec.scale_dtype == "e8m0x2":
        scales = decode_scales(unpack_pairs(stored, 2 * stored.shape[0])).T
    elif spec.granularity == "per_channel":
        scales = stored
    else:
        scales = read_scales(stored, spec.scale_dtype, spec.col_major, spec.hidden // BLOCK)
    product = wide * spread(scales, BLOCKS[spec.granularity], wide.shape)
    return {"out": product.to({"bf16": torch.bfloat16, "fp32": torch.float32}[spec.dtype])}
