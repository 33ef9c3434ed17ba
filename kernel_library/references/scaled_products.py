"""Operands and results of products with block scales, as the references of stacked products read them."""

from __future__ import annotations

from torch import Tensor

from kaas.kernel_library.references.number_formats import BLOCK, dequantise, unpack_pairs
from kaas.kernel_library.references.quantisation import (
    block_magnitudes,
    e8m0_of,
    pack_along_rows,
    scales_of,
    spread,
    store_values,
)


def operand(stored: Tensor, pairs: Tensor | None, dtype: str) -> Tensor:
    """float64 [rows, K] of stored values (e2m1 as pairs) and their scale pairs [ceil(K/64), rows]."""
    if pairs is None:
        return stored.double()
    depth = stored.shape[1] * (2 if dtype == "e2m1" else 1)
    return dequantise(stored.contiguous(), unpack_pairs(pairs, -(-depth // BLOCK)), dtype)


def quantised(product: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 values [M, N] and scale pairs [ceil(N/64), M] of a product in float64."""
    wide = product.float()
    scales, inverse = scales_of(block_magnitudes(wide, (1, BLOCK)), "e4m3", True)
    values = store_values(wide * spread(inverse, (1, BLOCK), wide.shape), "e4m3")
    return values, pack_along_rows(e8m0_of(scales)).T.contiguous()
