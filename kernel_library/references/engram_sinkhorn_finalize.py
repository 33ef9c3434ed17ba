"""Reference of engram_sinkhorn_finalize in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.engram_sinkhorn_finalize import EngramSinkhornFinalizeSpec


def scaled_matrix(inputs: Mapping[str, Any]) -> torch.Tensor:
    """row_scale * matrix * col_scale in float64."""
    rows: torch.Tensor = inputs["row_scale"].double().unsqueeze(1)
    return rows * inputs["matrix"].double() * inputs["col_scale"].double()


def reference(spec: EngramSinkhornFinalizeSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``out`` in float64."""
    scaled = scaled_matrix(inputs)
    norms = scaled.square().sum(1, keepdim=True).sqrt()
    return {"out": scaled * (inputs["alpha"] / (norms + spec.eps))}
