"""Reference of hc_prenorm_gemm: products and sums of squares in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.hc_prenorm_gemm import HcPrenormGemmSpec


def reference(spec: HcPrenormGemmSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``mixes`` [T, columns] and ``square_sum`` [T] in float64, of the weights as they are given."""
    x = inputs["x"].double()
    return {"mixes": x @ inputs["weight"].double().T, "square_sum": (x * x).sum(1)}
