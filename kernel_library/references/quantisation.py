"""Quantisation by blocks and back, in plain torch: what the references of the casts share.

Scales and products are single IEEE fp32 operations, so results are exact to the bit. NaN becomes 0 where it
is converted, as in the hardware's saturating conversions; the scale of its block is NaN or infinite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kaas.kernel_library.references.number_formats import (
    BLOCK,
    LARGEST,
    decode_e8m0,
    decode_values,
    encode_e2m1,
    encode_float8,
)

LEAST = {"e4m3": 1e-4, "e2m1": 6 * 2.0**-126}
"""What the largest magnitude of a block is clamped to from below."""


def block_magnitudes(wide: Tensor, block: tuple[int, int]) -> Tensor:
    """The largest magnitude of each block of fp32 [rows, columns]; blocks at the edges are smaller."""
    rows, columns = wide.shape
    down, across = -(-rows // block[0]), -(-columns // block[1])
    padded = torch.zeros((down * block[0], across * block[1]))
    padded[:rows, :columns] = wide.abs()
    return padded.view(down, block[0], across, block[1]).amax((1, 3))


def scales_of(magnitudes: Tensor, fmt: str, round_sf: bool) -> tuple[Tensor, Tensor]:
    """Scales and inverse scales (fp32) of the largest magnitudes of blocks."""
    clamped = magnitudes.clamp(min=torch.tensor(LEAST[fmt]))
    largest = torch.full_like(clamped, LARGEST[fmt])
    scales = clamped / largest
    if not round_sf:
        return scales, largest / clamped
    mantissa, exponent = torch.frexp(scales.double())  # mantissa in [0.5, 1)
    power = torch.where(mantissa == 0.5, exponent - 1, exponent)
    finite = scales.isfinite()
    one = torch.ones_like(power, dtype=torch.float64)
    rounded = torch.where(finite, torch.ldexp(one, power), torch.inf).float()
    return rounded, torch.where(finite, torch.ldexp(one, -power), 0.0).float()


def spread(scales: Tensor, block: tuple[int, int], shape: torch.Size) -> Tensor:
    """The scale of every value."""
    wide = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return wide[: shape[0], : shape[1]]


def store_values(scaled: Tensor, fmt: str) -> Tensor:
    """fp32 values as e4m3 or as bytes of e2m1 pairs."""
    return encode_e2m1(scaled) if fmt == "e2m1" else encode_float8(scaled.nan_to_num(nan=0.0), fmt)


def e8m0_of(scales: Tensor) -> Tensor:
    """Bytes of fp32 powers of two; infinity is 255."""
    return (scales.view(torch.int32) >> 23).to(torch.uint8)


def pack_along_rows(scales: Tensor) -> Tensor:
    """e8m0 bytes [rows, blocks] to int16 pairs [rows, ceil(blocks/2)]; a missing last one is 0."""
    rows, blocks = scales.shape
    padded = torch.zeros((rows, -(-blocks // 2) * 2), dtype=torch.uint8)
    padded[:, :blocks] = scales
    return padded.view(torch.int16)


def pack_along_columns(scales: Tensor) -> Tensor:
    """e8m0 bytes [blocks, columns] to int16 pairs [ceil(blocks/2), columns]; a missing last one is 0."""
    return pack_along_rows(scales.T.contiguous()).T.contiguous()


def read_scales(stored: Tensor, dtype: str, col_major: bool, blocks: int) -> Tensor:
    """fp32 scales [rows, blocks] of stored ones: fp32 or e8m0 pairs, [rows, ...] or [..., rows]."""
    by_row = stored.T.contiguous() if col_major else stored.contiguous()
    if dtype == "fp32":
        return by_row
    return decode_scales(by_row.view(torch.uint8).view(by_row.shape[0], 2 * by_row.shape[1])[:, :blocks])


def decode_scales(bytes_: Tensor) -> Tensor:
    """fp32 scales of e8m0 bytes."""
    return decode_e8m0(bytes_).float()


def dequantise_rows(values: Tensor, fmt: str, scales: Tensor) -> Tensor:
    """fp32 [rows, columns] of stored values with fp32 scales [rows, columns/32]."""
    wide = decode_values(values, fmt).float()
    return wide * spread(scales, (1, BLOCK), wide.shape)


def quantised_result(product: Tensor) -> dict[str, Tensor]:
    """``d`` as e4m3 and its scale pairs ``sfd`` [ceil(N/64), M] of a product [M, N], taken as fp32."""
    wide = product.float()
    scales, inverse = scales_of(block_magnitudes(wide, (1, BLOCK)), "e4m3", True)
    values = store_values(wide * spread(inverse, (1, BLOCK), wide.shape), "e4m3")
    return {"d": values, "sfd": pack_along_rows(e8m0_of(scales)).T.contiguous()}
