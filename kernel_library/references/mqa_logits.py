"""Reference of mqa_logits: every query's scores in float64, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.indexer_rows import rows_of, scores

if TYPE_CHECKING:
    from kaas.kernel_library.families.mqa_logits import MqaLogitsSpec


def reference(spec: MqaLogitsSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``out`` [tokens, columns] in float64: scores in the windows, behind them minus infinity or the old."""
    q = rows_of(inputs["q"], inputs["q_scales"], spec.dtype)
    kv = rows_of(inputs["kv"], inputs["kv_scales"], spec.dtype)
    tokens, keys = inputs["weights"].shape[0], kv.shape[0]
    q = q.view(tokens, spec.heads, spec.head_dim)
    if spec.clean:
        out = torch.full((tokens, inputs["columns"]), -torch.inf, dtype=torch.float64)
    else:
        out = inputs["out"].double().clone()
    for token in range(tokens):
        start = min(max(int(inputs["ks"][token]), 0), keys)
        end = max(min(int(inputs["ke"][token]), keys, start + out.shape[1]), start)
        out[token, : end - start] = scores(q[token], kv[start:end], inputs["weights"][token])
    return {"out": out}
