"""Reference of mla_prefill in plain torch, float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kaas.kernel_library.families.mla_prefill import MlaPrefillSpec
from kaas.kernel_library.references.softmax_attention import attention


def reference(spec: MlaPrefillSpec, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """``out`` and ``lse`` for every sequence; the last query of a causal one sees all of its keys.

    Rows of no sequence keep what they hold.
    """
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    group = spec.group
    out, lse = inputs["out"].double(), inputs["lse"].double()
    queries = inputs["cu_seqlens_q"].tolist()
    keys = inputs["cu_seqlens_k"].tolist()
    for index in range(len(queries) - 1):
        rows, columns = slice(*queries[index : index + 2]), slice(*keys[index : index + 2])
        q_length, k_length = rows.stop - rows.start, columns.stop - columns.start
        seen = torch.ones((q_length, k_length), dtype=torch.bool)
        if spec.causal:
            seen = seen.tril(k_length - q_length)
        for head in range(spec.heads):
            out[rows, head], lse[head, rows] = attention(
                q[rows, head],
                k[columns, head // group],
                v[columns, head // group],
                seen,
                inputs["softmax_scale"],
            )
    return {"out": out, "lse": lse}
