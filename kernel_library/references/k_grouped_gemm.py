"""Reference of k_grouped_gemm: group after group in float64, not yet rounded to the output's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaas.kernel_library.references.group_spans import spans_of

if TYPE_CHECKING:
    from kaas.kernel_library.families.k_grouped_gemm import KGroupedGemmSpec


def reference(spec: KGroupedGemmSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``d`` [groups, M, N] in float64: the old d plus each group's product."""
    a, b, d = inputs["a"].double(), inputs["b"].double(), inputs["d"].double()
    for group, (start, end) in enumerate(spans_of(inputs["grouped_layout"], a.shape[0])):
        if end > start:
            d[group] += a[start:end].T @ b[start:end]
    return {"d": d}
