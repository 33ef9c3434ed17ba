"""Matrices for the tests of block scaling: random ones of all magnitudes, and rows of corner cases."""

from __future__ import annotations

import math

import torch

BLOCK = 32
VALUE_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def random_matrix(tokens: int, hidden: int, seed: int) -> torch.Tensor:
    """fp32 values whose magnitude differs by block."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn((tokens, hidden), generator=generator)
    sizes = torch.randn((tokens, hidden // BLOCK), generator=generator).mul(6).exp2()
    return values * sizes.repeat_interleave(BLOCK, 1)


def random_values(tokens: int, hidden: int, dtype: str, seed: int) -> torch.Tensor:
    """Stored values of any dtype; e4m3 and e2m1 ones have every bit pattern that is a number."""
    if dtype in VALUE_DTYPES:
        return random_matrix(tokens, hidden, seed).to(VALUE_DTYPES[dtype])
    generator = torch.Generator().manual_seed(seed)
    width = hidden // 2 if dtype == "e2m1" else hidden
    raw = torch.randint(0, 256, (tokens, width), generator=generator, dtype=torch.uint8)
    if dtype == "e2m1":
        return raw
    return torch.where(raw & 0x7F == 0x7F, raw ^ 1, raw).view(torch.float8_e4m3fn)


def random_scales(
    rows: int,
    blocks: int,
    dtype: str,
    seed: int,
    *,
    col_major: bool = False,
    exponents: tuple[int, int] = (100, 150),
) -> torch.Tensor:
    """Stored scales of ``rows`` x ``blocks``: fp32 or e8m0 pairs; biased exponents from a range."""
    generator = torch.Generator().manual_seed(seed)
    width = -(-blocks // 2) * 2
    bytes_ = torch.randint(
        exponents[0], exponents[1] + 1, (rows, width), generator=generator, dtype=torch.uint8
    )
    if dtype == "e8m0x2":
        bytes_[:, blocks:] = 0
        stored = bytes_.view(torch.int16)
    else:
        mantissa = 1 + torch.rand((rows, blocks), generator=generator)
        stored = torch.ldexp(mantissa, bytes_[:, :blocks].int() - 127)
    return stored.T.contiguous() if col_major else stored


def corner_rows(fmt: str, hidden: int) -> torch.Tensor:
    """fp32 rows of one corner case each: see the names of the parts."""
    largest = {"e4m3": 448.0, "e2m1": 6.0}[fmt]
    return torch.stack(
        [
            *_repeated(_ties(fmt), hidden, largest),
            *_repeated(_powers(largest), hidden, None),
            torch.zeros(hidden),
            -torch.zeros(hidden),
            *_repeated(
                [1e-5, -3e-6, 9.9e-5, 1.1e-4, 2.0**-127, -(2.0**-149), 2.0**-126, 1e-39], hidden, None
            ),
            *_repeated([math.inf, 1.0, -1.0, 0.0, 1e30], hidden, None),
            *_repeated([-math.inf, math.nan, 5.0], hidden, None),
            *_repeated([math.nan, 2.0, -7.0], hidden, None),
            *_repeated([torch.finfo(torch.float32).max, 1.0, 1e37], hidden, None),
        ]
    )


def _ties(fmt: str) -> list[float]:
    """Middles of neighbouring values and what lies next to them, for a block whose scale is 1."""
    if fmt == "e2m1":
        middles = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    else:
        numbers = torch.arange(0, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
        middles = ((numbers[1:] + numbers[:-1]) / 2).tolist()
    found = []
    for middle in middles:
        found += [middle, middle * (1 + 2.0**-23), middle * (1 - 2.0**-23), -middle]
    return found


def _powers(largest: float) -> list[float]:
    """Magnitudes at which a scale is just a power of two, and their neighbours in fp32 and bf16."""
    found = []
    for exponent in (-13, -3, 0, 1, 40, 110):
        edge = largest * 2.0**exponent
        for step in (2.0**-21, 2.0**-7):
            found += [edge, edge * (1 + step), edge * (1 - step)]
    return found


def _repeated(values: list[float], hidden: int, top: float | None) -> list[torch.Tensor]:
    """Rows with ``values`` in turn: behind ``top`` in each block, or without it one to a block."""
    if top is None:
        blocks = torch.tensor(values, dtype=torch.float64)
        count = -(-len(values) * BLOCK // hidden)
        filled = blocks.repeat(-(-count * hidden // BLOCK // len(values)) + 1)[: count * hidden // BLOCK]
        rows = torch.zeros((count * hidden // BLOCK, BLOCK), dtype=torch.float64)
        rows[:, 7] = filled
        rows[:, 9] = filled / 3
        return list(rows.view(count, hidden).float())
    per_row = hidden // BLOCK * (BLOCK - 1)
    count = -(-len(values) // per_row)
    flat = torch.tensor(values, dtype=torch.float64).repeat(-(-count * per_row // len(values)))
    rows = torch.full((count * hidden // BLOCK, BLOCK), top, dtype=torch.float64)
    rows[:, 1:] = flat[: count * per_row].view(-1, BLOCK - 1)
    return list(rows.view(count, hidden).float())
