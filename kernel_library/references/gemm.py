"""Reference of gemm: the product in float64, not yet rounded to the output's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaas.kernel_library.references.quantisation import quantised_result

if TYPE_CHECKING:
    from kaas.kernel_library.families.gemm import GemmSpec


def reference(spec: GemmSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``d`` [M, N] in float64 from a, b, the old d if ``accumulate``; or ``d`` and ``sfd`` as stored."""
    a, b = inputs["a"].double(), inputs["b"].double()
    product = (a.T if spec.layout[0] == "t" else a) @ (b.T if spec.layout[1] == "t" else b)
    if spec.alpha:
        product = product * inputs["alpha"]
    if spec.accumulate:
        product = product + inputs["d"].double()
    return quantised_result(product) if spec.dtype_d == "e4m3" else {"d": product}
