"""Caches of key pages, requests and plans for the tests of the paged indexer's scores."""

from __future__ import annotations

from typing import Any

import torch
from support.indexer_inputs import UNIT, drawn, drawn_scales, drawn_weights

from kaas.kernel_library.families.paged_mqa_logits import PagedMqaLogitsSpec
from kaas.kernel_library.families.paged_mqa_metadata import PagedMqaMetadataSpec
from kaas.kernel_library.references.number_formats import unpack_pairs
from kaas.kernel_library.references.paged_mqa_metadata import reference as plan_of


def packed_pages(spec: PagedMqaLogitsSpec, values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A cache of values [pages, page_size, ...] and scale bytes [pages, page_size, head_dim/32]."""
    pages, size = scales.shape[:2]
    raw = values.contiguous().view(torch.uint8)
    if spec.layout == "tiles":
        raw = raw.view(pages, size, -1, 32).permute(0, 2, 1, 3).contiguous()
        scales = scales.view(pages, size // 16, 16, -1, 2).permute(0, 1, 3, 2, 4).contiguous()
    whole = torch.cat((raw.reshape(pages, -1), scales.reshape(pages, -1)), 1)
    return whole.view(pages, size, -1)


def paged_inputs(
    spec: PagedMqaLogitsSpec,
    sizes: list[int],
    lengths: list[int],
    *,
    integers: bool,
    boundaries: int = 9,
    columns: int | None = None,
    spare_columns: int = 1,
    seed: int = 1,
) -> dict[str, Any]:
    """Requests of ``sizes`` queries, the last of which look at ``lengths`` keys; pages in random order.

    Lengths go down by one from a request's last query to its first. With ``next_n`` all sizes are that.
    """
    generator = torch.Generator().manual_seed(seed)
    size, tokens = spec.page_size, sum(sizes)
    counts = [-(-max(length, 0) // size) for length in lengths]
    cache_pages = sum(counts) + 2
    order = torch.randperm(cache_pages, generator=generator).int()
    table = torch.full((len(sizes), max(counts) + spare_columns), -1, dtype=torch.int32)
    at = 0
    for row, count in enumerate(counts):
        table[row, :count] = order[at : at + count]
        at += count
    exponents = (UNIT - 1, UNIT + 1) if integers else (UNIT - 9, UNIT + 3)
    values = drawn((cache_pages * size, spec.head_dim), spec.dtype, generator, integers=integers)
    pairs = drawn_scales(cache_pages * size, spec.head_dim, generator, exponents)
    scales = unpack_pairs(pairs, spec.head_dim // 32)
    given: dict[str, Any] = {
        "q": drawn((tokens, spec.heads, spec.head_dim), spec.dtype, generator, integers=integers),
        "q_scales": drawn_scales(tokens * spec.heads, spec.head_dim, generator, exponents),
        "kv_cache": packed_pages(
            spec, values.view(cache_pages, size, -1), scales.view(cache_pages, size, -1)
        ),
        "weights": drawn_weights(tokens, spec.heads, generator, integers=integers),
    }
    if spec.next_n is None:
        each = [
            length - count + 1 + one
            for length, count in zip(lengths, sizes, strict=True)
            for one in range(count)
        ]
        rows = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        given["context_lens"] = torch.tensor(each, dtype=torch.int32)
        given["indices"] = (rows * 2 + 5).int()
        given["block_table"] = table[rows]
    else:
        given["context_lens"] = torch.tensor(lengths, dtype=torch.int32)
        given["block_table"] = table
    given["metadata"] = plan(spec, given, boundaries)
    room = columns or max(*lengths, 1)
    if spec.clean:
        given["columns"] = room
    else:
        given["out"] = torch.full((tokens, room), 7.0, dtype=torch.bfloat16)
    return given


def plan(spec: PagedMqaLogitsSpec, given: dict[str, Any], boundaries: int) -> torch.Tensor:
    """The metadata of a call, from the reference of the family that makes it."""
    planned = PagedMqaMetadataSpec(heads=spec.heads, next_n=spec.next_n)
    found: torch.Tensor = plan_of(planned, given | {"boundaries": boundaries})["metadata"]
    return found
