"""Reference of k_grouped_gemm: group after group in float64, not yet rounded to the output's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaas.kernel_library.references.group_spans import spans_of
from kaas.kernel_library.references.scaled_products import operand

if TYPE_CHECKING:
    from kaas.kernel_library.families.k_grouped_gemm import KGroupedGemmSpec


def reference(spec: KGroupedGemmSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``d`` [groups, M, N] in float64: the old d plus each group's product."""
    scaled = spec.dtype_a == "e4m3"
    a, b = (
        operand(inputs[name].T, inputs[scales] if scaled else None, spec.dtype_a)
        for name, scales in (("a", "sfa"), ("b", "sfb"))
    )
    d = inputs["d"].double()
    for group, (start, end) in enumerate(spans_of(inputs["grouped_layout"], a.shape[1])):
        if end > start:
            d[group] += a[:, start:end] @ b[:, start:end].T
    return {"d": d}
