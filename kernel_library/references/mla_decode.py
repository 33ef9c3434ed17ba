"""Reference of mla_decode in plain torch, float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kaas.kernel_library.families.mla_decode import D_V, MlaDecodeSpec
from kaas.kernel_library.references.softmax_attention import attention


def reference(spec: MlaDecodeSpec, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """``out`` and ``lse`` for every request, over the pages that its row of the block table names.

    With ``split`` also those of every part; parts behind a request's last key keep what they hold.
    """
    q, cache, table = inputs["q"], inputs["kv_cache"], inputs["block_table"]
    requests, s_q, heads, _ = q.shape
    out = torch.zeros((requests, s_q, heads, D_V), dtype=torch.float64)
    lse = torch.zeros((requests, heads, s_q), dtype=torch.float64)
    results = {"out": out, "lse": lse}
    if spec.split:
        results |= {name: inputs[name].double() for name in ("part_out", "part_lse")}
    for request in range(requests):
        length = min(max(int(inputs["cache_seqlens"][request]), 0), table.shape[1] * spec.page)
        if spec.split:
            length = min(length, len(results["part_out"]) * spec.split)
        pages = table[request, : -(-length // spec.page)].long()
        keys = cache[pages].reshape(-1, spec.d_qk)[:length]
        key = torch.arange(length)
        for token in range(s_q):
            count = max(length - (s_q - 1 - token), 0) if spec.causal else length
            seen = (key < count).expand(heads, length)
            call = q[request, token], keys, keys[:, :D_V]
            out[request, token], lse[request, :, token] = attention(*call, seen, inputs["softmax_scale"])
            for part in range(-(-length // spec.split) if spec.split else 0):
                rows = slice(token * heads, token * heads + heads)
                inside = seen & (key // spec.split == part)
                values, sums = attention(*call, inside, inputs["softmax_scale"])
                results["part_out"][part, request, rows] = values
                results["part_lse"][part, request, rows] = sums.where(inside.any(-1), -torch.inf)
    return results
