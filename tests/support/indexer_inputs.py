"""Queries, keys and weights for the tests of the sparse attention indexer's scores."""

from __future__ import annotations

import torch

from kaas.kernel_library.references.number_formats import encode_e2m1, encode_float8, pack_pairs

UNIT = 127
"""The e8m0 byte of 1."""


def stored(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """fp32 values as e4m3, or as pairs of e2m1."""
    return encode_e2m1(values) if dtype == "e2m1" else encode_float8(values, dtype)


def drawn(shape: tuple[int, ...], dtype: str, generator: torch.Generator, *, integers: bool) -> torch.Tensor:
    """Stored values: -2 .. 2, or normal ones."""
    if integers:
        return stored(torch.randint(-2, 3, shape, generator=generator).float(), dtype)
    return stored(torch.randn(shape, generator=generator) * (1.5 if dtype == "e2m1" else 20.0), dtype)


def drawn_scales(
    rows: int, head_dim: int, generator: torch.Generator, exponents: tuple[int, int] = (UNIT, UNIT)
) -> torch.Tensor:
    """Scale pairs [head_dim/64, rows] with bytes from a range."""
    low, high = exponents
    scales = torch.randint(low, high + 1, (rows, head_dim // 32), generator=generator, dtype=torch.uint8)
    # Flattened in between, so that a single row has the strides of a whole matrix.
    return pack_pairs(scales).flatten().view(-1, rows)


def drawn_weights(tokens: int, heads: int, generator: torch.Generator, *, integers: bool) -> torch.Tensor:
    """bf16 [tokens, heads]: -2 .. 2, or normal ones."""
    if integers:
        return torch.randint(-2, 3, (tokens, heads), generator=generator).bfloat16()
    return torch.randn((tokens, heads), generator=generator).bfloat16()
