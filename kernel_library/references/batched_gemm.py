"""Reference of batched_gemm: the einsum in float64, not yet rounded to the output's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.batched_gemm import BatchedGemmSpec


def reference(spec: BatchedGemmSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``d`` in float64, with the axes of the expression, from a, b and the old d if ``accumulate``."""
    # The accumulator starts at +0, so that no sum is -0.
    product = torch.einsum(spec.expression, inputs["a"].double(), inputs["b"].double()) + 0.0
    return {"d": product + inputs["d"].double() if spec.accumulate else product}
