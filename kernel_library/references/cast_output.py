"""Quantisation of a result in plain torch: fp32 rows to e4m3 or e2m1 with a scale per 32 values, to the bit.

Facts: the scale rule of TileKernels' casts. The largest magnitude of a block, at least 1e-4 (e4m3) or
6 * 2^-126 (e2m1), over the format's largest value is the scale; with ``round_sf`` the next power of two that
is not less. Values are multiplied by the inverse of the scale, computed as largest / magnitude without
``round_sf``, and rounded to nearest even.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kaas.kernel_library.references.number_formats import (
    BLOCK,
    LARGEST,
    encode_e2m1,
    encode_float8,
    pack_pairs,
)

_LEAST = {"e4m3": 1e-4, "e2m1": 6 * 2.0**-126}


def cast_output(spec: Any, values: Tensor) -> tuple[Tensor, Tensor]:
    """Finite fp32 [tokens, columns] as values and scales in the layout that ``spec`` asks for."""
    rows, columns = values.shape
    blocks = values.float().reshape(rows, columns // BLOCK, BLOCK)
    largest = torch.tensor(LARGEST[spec.cast])
    amax = blocks.abs().amax(-1).clamp(min=torch.tensor(_LEAST[spec.cast]))
    if spec.round_sf:
        fraction, exponent = torch.frexp(amax.double() / LARGEST[spec.cast])
        power = torch.where(fraction == 0.5, exponent - 1, exponent)
        scale = torch.ldexp(torch.ones_like(amax), power)
        inverse = torch.ldexp(torch.ones_like(amax), -power)
    else:
        scale, inverse = amax / largest, largest / amax
    scaled = (blocks * inverse[..., None]).reshape(rows, columns)
    stored = encode_e2m1(scaled) if spec.cast == "e2m1" else encode_float8(scaled, spec.cast)
    if spec.scales == "e8m0":
        pairs = pack_pairs((power + 127).to(torch.uint8))
        return stored, pairs if spec.col_major else pairs.T.contiguous()
    return stored, scale.T.contiguous() if spec.col_major else scale
