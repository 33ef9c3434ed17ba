"""Reference of engram_sinkhorn_step in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.engram_sinkhorn_finalize import scaled_matrix

if TYPE_CHECKING:
    from kaas.kernel_library.families.engram_sinkhorn_step import EngramSinkhornStepSpec


def reference(spec: EngramSinkhornStepSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Row scales, row norms and partial sums in float64."""
    scaled = scaled_matrix(inputs)
    norms = scaled.square().sum(1).sqrt()
    inverses = 1 / (norms + spec.eps)
    squares = (scaled * inverses.unsqueeze(1)).square()
    part_rows = max(-(-len(squares) // spec.partials), 1)
    sums = torch.zeros((spec.partials, spec.head_dim), dtype=torch.float64)
    sums.index_add_(0, torch.arange(len(squares)) // part_rows, squares)
    return {
        "row_scale": inputs["row_scale"].double() * inverses,
        "row_norm": norms,
        "col_sumsq_partial": sums,
    }
