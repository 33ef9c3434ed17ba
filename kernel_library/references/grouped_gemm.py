"""Reference of grouped_gemm: group after group in float64, not yet rounded to the output's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaas.kernel_library.references.group_spans import spans_of

if TYPE_CHECKING:
    from kaas.kernel_library.families.grouped_gemm import GroupedGemmSpec


def reference(spec: GroupedGemmSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``d`` [M, N] in float64: the old d with the rows of groups replaced."""
    a, d = inputs["a"].double(), inputs["d"].double()
    for group, (start, end) in enumerate(spans_of(inputs["grouped_layout"], a.shape[0])):
        b = inputs["b"][group].double()
        # The accumulator starts at +0, so that no sum is -0.
        d[start:end] = a[start:end] @ (b.T if spec.layout == "nt" else b) + 0.0
    return {"d": d}
