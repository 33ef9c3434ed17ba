"""Reference of mla_decode in plain torch, float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kaas.kernel_library.families.mla_decode import D_V, MlaDecodeSpec
from kaas.kernel_library.references.softmax_attention import attention


def reference(spec: MlaDecodeSpec, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """``out`` and ``lse`` for every request, over the pages that its row of the block table names."""
    q, cache, table = inputs["q"], inputs["kv_cache"], inputs["block_table"]
    requests, s_q, heads, _ = q.shape
    out = torch.zeros((requests, s_q, heads, D_V), dtype=torch.float64)
    lse = torch.zeros((requests, heads, s_q), dtype=torch.float64)
    for request in range(requests):
        length = min(max(int(inputs["cache_seqlens"][request]), 0), table.shape[1] * spec.page)
        pages = table[request, : -(-length // spec.page)].long()
        keys = cache[pages].reshape(-1, spec.d_qk)[:length]
        for token in range(s_q):
            count = max(length - (s_q - 1 - token), 0) if spec.causal else length
            seen = (torch.arange(length) < count).expand(heads, length)
            scale = inputs["softmax_scale"]
            out[request, token], lse[request, :, token] = attention(
                q[request, token], keys, keys[:, :D_V], seen, scale
            )
    return {"out": out, "lse": lse}
