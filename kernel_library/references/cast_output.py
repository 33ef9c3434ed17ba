"""Quantisation of a finite result, as kernels with a field ``cast`` end in one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kaas.kernel_library.references.number_formats import BLOCK
from kaas.kernel_library.references.quantisation import (
    block_magnitudes,
    e8m0_of,
    pack_along_rows,
    scales_of,
    spread,
    store_values,
)


def cast_output(spec: Any, values: Tensor) -> tuple[Tensor, Tensor]:
    """[tokens, columns], taken as fp32, as values and scales in the layout that ``spec`` asks for."""
    wide, block = values.float(), (1, BLOCK)
    scales, inverse = scales_of(block_magnitudes(wide, block), spec.cast, spec.round_sf)
    stored = store_values(wide * spread(inverse, block, wide.shape), spec.cast)
    if spec.scale_dtype == "e8m0x2":
        scales = pack_along_rows(e8m0_of(scales))
    return stored, scales.T.contiguous() if spec.col_major else scales
