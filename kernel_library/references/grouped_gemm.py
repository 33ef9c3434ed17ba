"""Reference of grouped_gemm: group after group in float64, not yet rounded to the output's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaas.kernel_library.references.group_spans import spans_of
from kaas.kernel_library.references.scaled_products import operand

if TYPE_CHECKING:
    from kaas.kernel_library.families.grouped_gemm import GroupedGemmSpec


def reference(spec: GroupedGemmSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``d`` [M, N] in float64: the old d with the rows of groups replaced."""
    a, b, d = inputs["a"], inputs["b"], inputs["d"].double()
    scaled = spec.dtype_a in ("e4m3", "e2m1")
    left = operand(a, inputs["sfa"] if scaled else None, spec.dtype_a)
    for group, (start, end) in enumerate(spans_of(inputs["grouped_layout"], a.shape[0])):
        rows = b[group] if spec.layout == "nt" else b[group].T
        right = operand(rows, inputs["sfb"][group] if scaled else None, spec.dtype_b)
        # The accumulator starts at +0, so that no sum is -0.
        d[start:end] = left[start:end] @ right.T + 0.0
    return {"d": d}
