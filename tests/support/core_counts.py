"""Results on parts with different core counts: they must be the same to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from support.kernel_checks import EXACT, Comparison, check_kernel, compare_output

from kaas.kernel_library.spec import KernelSpec


def check_on_every_part(
    spec: KernelSpec, inputs: Mapping[str, Any], compare: Comparison | Mapping[str, Comparison]
) -> dict[str, torch.Tensor]:
    """Check ``spec`` on parts with 4, 28 and 36 cube cores; equal outputs. Returns one of them."""
    results = [check_kernel(spec, cores, inputs, compare) for cores in (4, 28, 36)]
    for other in results[1:]:
        for name, tensor in other.items():
            compare_output(name, tensor, results[0][name], EXACT)
    return results[0]
