"""Block-scaled operands for the tests of products: values, what they are stored as, and their scales."""

from __future__ import annotations

import torch

from kaas.kernel_library.references.number_formats import BLOCK, encode_e2m1, encode_float8
from kaas.kernel_library.references.quantisation import block_magnitudes, e8m0_of, scales_of, spread


def scaled_operand(
    rows: int, k: int, dtype: str, generator: torch.Generator, *, integers: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, K] as stored (e2m1 as pairs) and e8m0 scales [rows, ceil(K/32)].

    Integers are -2 .. 2 with scales 1/2, 1 and 2, so that sums are exact in fp32; other values are normally
    distributed and quantised.
    """
    encode = encode_e2m1 if dtype == "e2m1" else lambda values: encode_float8(values, dtype)
    if integers:
        values = torch.randint(-2, 3, (rows, k), generator=generator).float()
        scales = torch.randint(126, 129, (rows, -(-k // BLOCK)), generator=generator).to(torch.uint8)
        return encode(values), scales
    values = torch.randn((rows, k), generator=generator)
    scales, inverse = scales_of(block_magnitudes(values, (1, BLOCK)), dtype, True)
    return encode(values * spread(inverse, (1, BLOCK), values.shape)), e8m0_of(scales)
