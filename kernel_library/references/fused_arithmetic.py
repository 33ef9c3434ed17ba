"""fp32 arithmetic with a fused multiply-add, exact to the last bit, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def fused_multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """fp32 ``a * b + c`` with one rounding.

    The product is exact in float64. The sum is rounded to odd there, which keeps what a second rounding, to
    fp32, needs to know (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
    """
    product, addend = torch.broadcast_tensors(a.double() * b.double(), c.double())
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.contiguous().view(torch.int64)
    inexact_even = (error != 0) & total.isfinite() & (bits & 1 == 0)
    towards = torch.where((error > 0) == (total > 0), 1, -1)  # bits of a magnitude grow away from zero
    return torch.where(inexact_even, bits + towards, bits).view(torch.float64).float()
