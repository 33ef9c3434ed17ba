"""Reference of engram_sinkhorn_step_reduce: fp32 additions in ascending order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.engram_sinkhorn_step_reduce import EngramSinkhornStepReduceSpec


def reference(spec: EngramSinkhornStepReduceSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``col_sumsq``, to the bit."""
    total = torch.zeros(spec.head_dim)
    for partial in inputs["col_sumsq_partial"]:
        total = total + partial
    return {"col_sumsq": total}
