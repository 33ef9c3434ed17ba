"""The small number formats of the block-scaled kernels, decoded and encoded in plain torch.

e8m0: a byte b is 2^(b-127), 255 is NaN. e2m1: sign and the magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6; two per
byte, the even one in the low nibble. Scale pairs: two e8m0 in a 16-bit word, the first in the low byte, for
64 consecutive values. Encoding rounds to nearest even and saturates (public OCP MX specification 1.0).
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32
"""Values that share one scale."""

LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}
_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def decode_e8m0(scales: Tensor) -> Tensor:
    """Bytes [...] to float64 powers of two; 255 becomes NaN."""
    bits = scales.view(torch.uint8).to(torch.int32)
    value = torch.ldexp(torch.ones_like(bits, dtype=torch.float64), bits - 127)
    return torch.where(bits == 255, torch.nan, value)


def unpack_pairs(pairs: Tensor, blocks: int) -> Tensor:
    """Scale pairs [ceil(K/64), MN] (16 bit) to e8m0 bytes [MN, blocks]."""
    raw = pairs.contiguous().view(torch.uint8).view(*pairs.shape, 2)
    return raw.permute(1, 0, 2).reshape(pairs.shape[1], 2 * pairs.shape[0])[:, :blocks].contiguous()


def pack_pairs(scales: Tensor) -> Tensor:
    """e8m0 bytes [MN, blocks] to int16 pairs [ceil(blocks/2), MN]; a missing last one is 0."""
    rows, blocks = scales.shape
    padded = torch.zeros((rows, -(-blocks // 2) * 2), dtype=torch.uint8)
    padded[:, :blocks] = scales.view(torch.uint8)
    return padded.view(torch.int16).T.contiguous()


def decode_e2m1(pairs: Tensor) -> Tensor:
    """Bytes [..., K/2] to float64 values [..., K]."""
    raw = pairs.view(torch.uint8)
    nibbles = torch.stack((raw & 15, raw >> 4), dim=-1).flatten(-2)
    magnitudes = torch.tensor(_E2M1_MAGNITUDES, dtype=torch.float64)[(nibbles & 7).long()]
    return torch.where(nibbles >= 8, -magnitudes, magnitudes)


def encode_e2m1(values: Tensor) -> Tensor:
    """Values [..., K] (K even) to bytes [..., K/2], nearest even, saturating; NaN becomes 0."""
    wide = values.double()
    magnitudes = torch.tensor(_E2M1_MAGNITUDES, dtype=torch.float64)
    middles = (magnitudes[1:] + magnitudes[:-1]) / 2
    size = wide.abs().nan_to_num(0.0)
    above = torch.bucketize(size, middles, right=True)  # on a middle: the upper neighbour
    below = torch.bucketize(size, middles, right=False)  # on a middle: the lower neighbour
    nibble = torch.where(above % 2 == 0, above, below)  # a tie goes to the even code
    nibble = nibble | (torch.signbit(wide) & ~wide.isnan()).long() * 8
    nibble = nibble.to(torch.uint8)
    return nibble[..., 0::2] | (nibble[..., 1::2] << 4)


def encode_float8(values: Tensor, dtype: str) -> Tensor:
    """Values to float8 tensors, nearest even, saturating to the largest finite value; NaN stays NaN."""
    largest = LARGEST[dtype]
    kind = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[dtype]
    return values.float().clamp(-largest, largest).to(kind)


def decode_values(values: Tensor, dtype: str) -> Tensor:
    """Stored values of any float dtype, fp4 pairs included, as float64."""
    return decode_e2m1(values) if dtype == "e2m1" else values.double()


def dequantise(values: Tensor, scales: Tensor, dtype: str) -> Tensor:
    """float64 [MN, K] of stored values [MN, K] with e8m0 scales [MN, K/32] (bytes)."""
    wide = decode_values(values, dtype)
    factors = decode_e8m0(scales).repeat_interleave(BLOCK, dim=-1)[..., : wide.shape[-1]]
    return wide * factors
