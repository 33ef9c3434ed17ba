"""Reference of block_scaled_gemm: the product of the dequantised operands in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaas.kernel_library.references.number_formats import BLOCK, dequantise, unpack_pairs
from kaas.kernel_library.references.quantisation import quantised_result

if TYPE_CHECKING:
    from torch import Tensor

    from kaas.kernel_library.families.block_scaled_gemm import BlockScaledGemmSpec


def reference(spec: BlockScaledGemmSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``d`` [M, N] in float64, or ``d`` and ``sfd`` as stored where the result is quantised."""
    left = operand(inputs["a"], inputs["sfa"], spec.dtype_a, k_major=spec.layout[0] == "t")
    right = operand(inputs["b"], inputs["sfb"], spec.dtype_b, k_major=spec.layout[1] == "n")
    product = left @ right.T
    if spec.alpha:
        product = product * inputs["alpha"]
    if spec.accumulate:
        product = product + inputs["d"].double()
    if spec.dtype_d != "e4m3":
        return {"d": product}
    return quantised_result(product)


def operand(stored: Tensor, pairs: Tensor, dtype: str, *, k_major: bool) -> Tensor:
    """Dequantised [rows, K] in float64 of one operand and its scale pairs [ceil(K/64), rows]."""
    by_row = stored.T.contiguous() if k_major else stored
    depth = by_row.shape[1] * (2 if dtype == "e2m1" else 1)
    return dequantise(by_row, unpack_pairs(pairs, -(-depth // BLOCK)), dtype)
