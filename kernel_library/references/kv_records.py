"""KV cache records in plain torch: bf16 rows to bytes and back, exact to the bit."""

from __future__ import annotations

import torch
from torch import Tensor

from kaas.kernel_library.references.number_formats import (
    decode_e2m1,
    decode_e8m0,
    encode_e2m1,
    encode_float8,
)

WIDTH = 512
FP8_BLOCK, FP4_BLOCK = 32, 16
LEAST_FP8_SCALE = 1e-4
LEAST_FP4_SCALE, LARGEST_FP4_SCALE = 2.0**-9, 448.0
E4M3_NAN = 0x7F


def pack_records(rows: Tensor, fmt: str) -> Tensor:
    """Records [n, 528 or 288] uint8 of bf16 rows [n, 512]."""
    return _pack_fp8(rows.float()) if fmt == "fp8" else _pack_fp4(rows.float())


def unpack_records(records: Tensor, fmt: str) -> Tensor:
    """float64 rows [n, 512] of records, before they are rounded to bf16."""
    if fmt == "fp8":
        values = records[:, :WIDTH].contiguous().view(torch.float8_e4m3fn).double()
        scales = decode_e8m0(records[:, WIDTH:].contiguous())
        return values * scales.repeat_interleave(FP8_BLOCK, dim=1)
    values = decode_e2m1(records[:, : WIDTH // 2].contiguous())
    scales = records[:, WIDTH // 2 :].contiguous().view(torch.float8_e4m3fn).double()
    return values * scales.repeat_interleave(FP4_BLOCK, dim=1)


def _pack_fp8(rows: Tensor) -> Tensor:
    """The scale is the least power of two that is not below magnitude / 448, and not below 1e-4."""
    magnitudes = rows.view(-1, WIDTH // FP8_BLOCK, FP8_BLOCK).abs().amax(2)
    least = (magnitudes / 448.0).clamp(min=LEAST_FP8_SCALE)
    mantissa, exponent = torch.frexp(least.double())
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    finite = magnitudes.isfinite()
    codes = torch.where(finite, exponent + 127, 255).to(torch.uint8)
    one = torch.ones_like(least, dtype=torch.float64)
    inverse = torch.where(finite, torch.ldexp(one, -exponent), 0.0).float()
    scaled = rows * inverse.repeat_interleave(FP8_BLOCK, dim=1)
    values = encode_float8(scaled.nan_to_num(nan=0.0), "e4m3").view(torch.uint8)
    return torch.cat((values, codes), dim=1)


def _pack_fp4(rows: Tensor) -> Tensor:
    """The scale is magnitude / 6, within e4m3's range and rounded to it; values are divided by that."""
    magnitudes = rows.view(-1, WIDTH // FP4_BLOCK, FP4_BLOCK).abs().amax(2)
    finite = magnitudes.isfinite()
    bounded = (magnitudes / 6.0).clamp(LEAST_FP4_SCALE, LARGEST_FP4_SCALE)
    scales = bounded.nan_to_num(nan=LARGEST_FP4_SCALE).to(torch.float8_e4m3fn)
    codes = torch.where(finite, scales.view(torch.uint8), E4M3_NAN)
    divisors = torch.where(finite, scales.float(), torch.inf)
    divided = rows / divisors.repeat_interleave(FP4_BLOCK, dim=1)
    return torch.cat((encode_e2m1(divided), codes), dim=1)
