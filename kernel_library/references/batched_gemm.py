"""Reference of batched_gemm: head after head in float64, not yet rounded to the output's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.scaled_products import operand, quantised

if TYPE_CHECKING:
    from kaas.kernel_library.families.batched_gemm import BatchedGemmSpec

# How each operand [head, its letters] becomes [head, rows, sum], and the product [head, rows, columns] D.
_TO_ROWS_AND_SUM = {
    "bhr,hdr->bhd": ("bhr->hbr", "hdr->hdr", "hbd->bhd"),
    "bhd,hdr->bhr": ("bhd->hbd", "hdr->hrd", "hbr->bhr"),
    "bhd,bhr->hdr": ("bhd->hdb", "bhr->hrb", "hdr->hdr"),
}


def reference(spec: BatchedGemmSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``d`` in float64 with the axes of the expression; as stored, with ``sfd``, where it is quantised."""
    of_a, of_b, of_d = _TO_ROWS_AND_SUM[spec.expression]
    a, b = _permuted(of_a, inputs["a"]), _permuted(of_b, inputs["b"])
    scaled = spec.dtype_a == "e4m3"
    products = []
    for head in range(a.shape[0]):
        sfa, sfb = (inputs[name][head] if scaled else None for name in ("sfa", "sfb"))
        left, right = operand(a[head], sfa, spec.dtype_a), operand(b[head], sfb, spec.dtype_a)
        # The accumulator starts at +0, so that no sum is -0.
        products.append(left @ right.T + 0.0)
    if spec.dtype_d == "e4m3":
        pairs = [quantised(product) for product in products]
        values = torch.stack([values.view(torch.uint8) for values, _ in pairs])
        d = _permuted(of_d, values).contiguous().view(torch.float8_e4m3fn)
        return {"d": d, "sfd": torch.stack([scales for _, scales in pairs])}
    product = _permuted(of_d, torch.stack(products))
    return {"d": product + inputs["d"].double() if spec.accumulate else product}


def _permuted(axes: str, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with its axes in another order, by letters."""
    before, _, after = axes.partition("->")
    return tensor.permute([before.index(letter) for letter in after])
