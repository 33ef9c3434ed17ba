"""Reference of mla_sparse_decode in plain torch, float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kaas.kernel_library.families.mla_sparse_decode import MlaSparseDecodeSpec
from kaas.kernel_library.references.kv_records import WIDTH, unpack_records
from kaas.kernel_library.references.sparse_attention import counted_keys, sparse_attention


def reference(spec: MlaSparseDecodeSpec, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """``out`` and ``lse`` of every token of every request."""
    q = inputs["q"]
    requests, s_q, heads, _ = q.shape
    out = torch.zeros((requests, s_q, heads, WIDTH), dtype=torch.float64)
    lse = torch.zeros((requests, heads, s_q), dtype=torch.float64)
    for request in range(requests):
        for token in range(s_q):
            keys = _keys(inputs, "", request, token, "fp8")
            if spec.extra != "none":
                keys = torch.cat((keys, _keys(inputs, "extra_", request, token, spec.extra)))
            out[request, token], _, lse[request, :, token] = sparse_attention(
                q[request, token], keys, WIDTH, inputs["softmax_scale"], inputs.get("attn_sink")
            )
    return {"out": out, "lse": lse}


def _keys(inputs: Mapping[str, Any], prefix: str, request: int, token: int, fmt: str) -> torch.Tensor:
    """The keys that one list names, as bf16 numbers [n, 512]."""
    cache = inputs[f"{prefix}k_cache"]
    records = cache.reshape(-1, cache.shape[-1])
    lengths = inputs.get(f"{prefix}topk_length")
    length = None if lengths is None else int(lengths[request])
    listed = counted_keys(inputs[f"{prefix}indices"][request, token], length, records.shape[0])
    return unpack_records(records[listed], fmt).bfloat16()
