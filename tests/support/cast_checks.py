"""Casts at the end of a kernel: what they must write is a quantisation of what the plain kernel writes.

Nobody can predict a kernel's fp32 values to the bit, but the plain kernel computes the same and shows them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kaas.kernel_library.references.cast_output import cast_output


def expected_cast(spec: Any, plain: Tensor, name: str, written: Tensor | None = None) -> dict[str, Tensor]:
    """Outputs ``name`` and ``name``_scales; rows that are not ``written`` keep bytes 0xFF."""
    unwritten = torch.zeros(len(plain), dtype=torch.bool) if written is None else ~written
    values, scales = cast_output(spec, torch.where(unwritten[:, None], 0.0, plain.float()))
    values.view(torch.uint8)[unwritten] = 0xFF
    by_row = scales.T if spec.col_major else scales
    by_row[unwritten] = -1 if scales.dtype == torch.int16 else torch.nan
    return {name: values, f"{name}_scales": scales}
