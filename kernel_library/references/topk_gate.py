"""Reference of topk_gate: a stable descending sort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.topk_gate import TopkGateSpec


def reference(spec: TopkGateSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``topk_idx`` as int64 or int32."""
    order = torch.sort(inputs["scores"].double(), dim=1, descending=True, stable=True).indices
    return {"topk_idx": order[:, : spec.topk].to(getattr(torch, spec.index_dtype))}
