"""Reference of mla_sparse_prefill in plain torch, float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kaas.kernel_library.attention.sparse_tiles import D_V
from kaas.kernel_library.families.mla_sparse_prefill import MlaSparsePrefillSpec
from kaas.kernel_library.references.sparse_attention import counted_keys, sparse_attention


def reference(spec: MlaSparsePrefillSpec, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """``out``, ``max_logits`` and ``lse`` of every token."""
    q, kv, indices = inputs["q"], inputs["kv"][:, 0], inputs["indices"]
    tokens, heads, _ = q.shape
    out = torch.zeros((tokens, heads, D_V), dtype=torch.float64)
    maxima = torch.zeros((tokens, heads), dtype=torch.float64)
    lse = torch.zeros((tokens, heads), dtype=torch.float64)
    for token in range(tokens):
        length = int(inputs["topk_length"][token]) if spec.topk_length else None
        keys = kv[counted_keys(indices[token, 0], length, kv.shape[0])]
        sink = inputs["attn_sink"] if spec.attn_sink else None
        out[token], maxima[token], lse[token] = sparse_attention(
            q[token], keys, D_V, inputs["softmax_scale"], sink
        )
    return {"out": out, "max_logits": maxima, "lse": lse}
