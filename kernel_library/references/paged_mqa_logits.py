"""Reference of paged_mqa_logits: every query's scores in float64, its keys gathered page by page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kaas.kernel_library.references.indexer_rows import rows_of, scores
from kaas.kernel_library.references.number_formats import BLOCK, dequantise
from kaas.kernel_library.references.request_lengths import lengths_of, requests_of

if TYPE_CHECKING:
    from kaas.kernel_library.families.paged_mqa_logits import PagedMqaLogitsSpec


def reference(spec: PagedMqaLogitsSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``out`` [tokens, columns] in float64: scores, behind them minus infinity or the old."""
    table = inputs["block_table"]
    lengths = lengths_of(inputs, spec.next_n, table.shape[1] * spec.page_size)
    q = rows_of(inputs["q"], inputs["q_scales"], spec.dtype).view(-1, spec.heads, spec.head_dim)
    keys = keys_of(spec, inputs["kv_cache"])
    if spec.clean:
        out = torch.full((len(lengths), inputs["columns"]), -torch.inf, dtype=torch.float64)
    else:
        out = inputs["out"].double().clone()
    for first, count in requests_of(inputs, spec.next_n):
        row = first if spec.next_n is None else first // spec.next_n
        pages = table[row].long().clamp(0, keys.shape[0] - 1)
        mine = keys[pages].flatten(0, 1)
        for query in range(first, first + count):
            held = min(lengths[query], out.shape[1])
            out[query, :held] = scores(q[query], mine[:held], inputs["weights"][query])
    return {"out": out}


def keys_of(spec: PagedMqaLogitsSpec, cache: Tensor) -> Tensor:
    """float64 [pages, page_size, head_dim] of a cache's bytes."""
    pages, size = cache.shape[0], spec.page_size
    row_bytes = spec.head_dim // (2 if spec.dtype == "e2m1" else 1)
    flat = cache.reshape(pages, -1)
    values, scales = flat[:, : size * row_bytes], flat[:, size * row_bytes :]
    if spec.layout == "tiles":
        values = values.view(pages, row_bytes // 32, size, 32).permute(0, 2, 1, 3)
        scales = scales.view(pages, size // 16, spec.head_dim // 64, 16, 2).permute(0, 1, 3, 2, 4)
    values = values.reshape(pages * size, row_bytes).contiguous()
    stored = values if spec.dtype == "e2m1" else values.view(torch.float8_e4m3fn)
    scales = scales.reshape(pages * size, spec.head_dim // BLOCK).contiguous()
    return dequantise(stored, scales, spec.dtype).view(pages, size, spec.head_dim)
