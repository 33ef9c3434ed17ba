"""Inputs of dense attention kernels: queries, a paged latent cache, and ragged batches of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kaas.kernel_library.families.mla_decode import MlaDecodeSpec
from kaas.kernel_library.families.mla_prefill import MlaPrefillSpec

AMPLITUDE = 0.25
"""Of keys and values: outputs are then small enough for weights of 8 bits to be near them."""


def decode_inputs(
    spec: MlaDecodeSpec,
    lengths: Sequence[int],
    *,
    sharpness: float = 1.0,
    integers: bool = False,
    max_pages: int | None = None,
    parts: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """A call of ``spec`` whose requests have ``lengths`` keys, on pages in random order.

    Records behind a request's last key are NaN, as are pages of nobody; what the table says of pages that a
    request has not is far outside. ``integers`` makes queries and keys -1, 0 and 1.
    Room for parts is 77. Scores have a standard deviation of about ``sharpness``.
    """
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-max(length, 0) // spec.page) for length in lengths]
    order = torch.randperm(sum(needed) + 2, generator=generator)
    table = torch.full((len(lengths), max_pages or max(*needed, 1)), -(2**30), dtype=torch.int32)
    cache = torch.full((len(order), spec.page, 1, spec.d_qk), torch.nan, dtype=torch.bfloat16)
    used = 0
    for request, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        pages = order[used : used + count]
        used += count
        table[request, :count] = pages[: table.shape[1]].int()
        records = _values(generator, (count * spec.page, spec.d_qk), integers)
        records[max(length, 0) :] = torch.nan
        cache[pages, :, 0] = records.view(count, spec.page, spec.d_qk)
    made = {
        "q": _values(
            generator,
            (len(lengths), spec.s_q, spec.heads, spec.d_qk),
            integers,
            sharpness / AMPLITUDE,
        ),
        "kv_cache": cache,
        "block_table": table,
        "cache_seqlens": torch.tensor(lengths, dtype=torch.int32),
        "softmax_scale": spec.d_qk**-0.5,
    }
    if spec.split:
        room = (parts or -(-max(*lengths, 1) // spec.split), len(lengths), spec.s_q * spec.heads)
        made |= {"part_out": torch.full((*room, 512), 77.0), "part_lse": torch.full(room, 77.0)}
    return made


def _values(
    generator: torch.Generator, shape: tuple[int, ...], integers: bool, amplitude: float = AMPLITUDE
) -> torch.Tensor:
    if integers:
        return torch.randint(-1, 2, shape, generator=generator).bfloat16()
    return (torch.randn(shape, generator=generator) * amplitude).bfloat16()


def prefill_inputs(
    spec: MlaPrefillSpec,
    lengths: Sequence[tuple[int, int]],
    *,
    sharpness: float = 1.0,
    integers: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """A call of ``spec`` with sequences of (queries, keys); what is written is 77 before.

    There are three tokens of either kind behind the last sequence, which are NaN. ``integers`` and
    ``sharpness`` as in :func:`decode_inputs`.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens, kv_tokens = (sum(pair[side] for pair in lengths) for side in (0, 1))
    starts = torch.cumsum(torch.tensor([(0, 0), *lengths]), 0).int()

    def values(count: int, *shape: int, amplitude: float = AMPLITUDE) -> torch.Tensor:
        made = _values(generator, (count + 3, *shape), integers, amplitude)
        made[count:] = torch.nan
        return made

    return {
        "q": values(tokens, spec.heads, spec.d_qk, amplitude=sharpness / AMPLITUDE),
        "k": values(kv_tokens, spec.kv_heads, spec.d_qk),
        "v": values(kv_tokens, spec.kv_heads, 128),
        "cu_seqlens_q": starts[:, 0].contiguous(),
        "cu_seqlens_k": starts[:, 1].contiguous(),
        "softmax_scale": spec.d_qk**-0.5,
        "out": torch.full((tokens + 3, spec.heads, 128), 77.0).bfloat16(),
        "lse": torch.full((spec.heads, tokens + 3), 77.0),
    }
