"""Queries, keys and weights for the tests of the sparse attention indexer's scores."""

from __future__ import annotations

from typing import Any

import torch

from kaas.kernel_library.families.mqa_logits import MqaLogitsSpec
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


def window_inputs(
    spec: MqaLogitsSpec,
    keys: int,
    starts: list[int],
    ends: list[int],
    *,
    integers: bool,
    columns: int | None = None,
    seed: int = 1,
) -> dict[str, Any]:
    """What mqa_logits takes for queries with these windows; without ``columns`` the longest one fits."""
    generator = torch.Generator().manual_seed(seed)
    tokens = len(starts)
    room = columns or max(1, max(end - start for start, end in zip(starts, ends, strict=True)))
    exponents = (UNIT - 1, UNIT + 1) if integers else (UNIT - 9, UNIT + 3)
    given: dict[str, Any] = {
        "q": drawn((tokens, spec.heads, spec.head_dim), spec.dtype, generator, integers=integers),
        "q_scales": drawn_scales(tokens * spec.heads, spec.head_dim, generator, exponents),
        "kv": drawn((keys, spec.head_dim), spec.dtype, generator, integers=integers),
        "kv_scales": drawn_scales(keys, spec.head_dim, generator, exponents),
        "weights": drawn_weights(tokens, spec.heads, generator, integers=integers),
        "ks": torch.tensor(starts, dtype=torch.int32),
        "ke": torch.tensor(ends, dtype=torch.int32),
    }
    if spec.clean:
        given["columns"] = room
    else:
        given["out"] = torch.full((tokens, room), 7.0, dtype=torch.bfloat16)
    return given
