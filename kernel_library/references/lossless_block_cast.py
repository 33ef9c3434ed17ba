"""Reference of lossless_block_cast: exact to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.number_formats import BLOCK, decode_e2m1, encode_float8
from kaas.kernel_library.references.quantisation import (
    decode_scales,
    pack_along_rows,
    read_scales,
    spread,
)
from kaas.kernel_library.references.scale_layout import power_bytes

if TYPE_CHECKING:
    from kaas.kernel_library.families.lossless_block_cast import LosslessBlockCastSpec


def reference(spec: LosslessBlockCastSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``out`` and ``out_scales`` as stored."""
    scales = read_scales(inputs["x_scales"], spec.in_scales, spec.in_col_major, spec.hidden // BLOCK)
    powers = power_bytes(scales).int()
    groups = powers.split(BLOCK) if len(powers) else ()
    none = powers.new_zeros((0, powers.shape[1]))
    most = torch.stack([group.amax(0) for group in groups]) if groups else none
    least = torch.stack([group.amin(0) for group in groups]) if groups else none
    shared = most.clamp(min=6) - 6
    exact = (most != 255) & (least >= shared - 8)
    bytes_ = torch.where(exact, shared, 255).to(torch.uint8)

    values = decode_e2m1(inputs["x"])
    tall = (BLOCK, 1)
    distance = powers - spread(shared, tall, powers.shape)
    factors = torch.ldexp(torch.ones(powers.shape, dtype=torch.float64), distance)
    factors = torch.where(spread(exact, tall, powers.shape), factors, 0.0)
    product = values * spread(factors, (1, BLOCK), values.shape)
    out = encode_float8(product.float(), "e4m3")
    stored = pack_along_rows(bytes_) if spec.scale_dtype == "e8m0x2" else decode_scales(bytes_)
    return {"out": out, "out_scales": stored.T.contiguous() if spec.col_major else stored}
