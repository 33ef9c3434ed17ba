"""Reference of scale_transpose: exact to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kaas.kernel_library.references.number_formats import BLOCK, pack_pairs
from kaas.kernel_library.references.scale_layout import power_bytes

if TYPE_CHECKING:
    from kaas.kernel_library.families.scale_transpose import ScaleTransposeSpec


def _packed(scales: Tensor) -> Tensor:
    """Pairs along the last axis [ceil(blocks/2), rows * 32] of fp32 [rows, blocks]."""
    return pack_pairs(power_bytes(scales).repeat_interleave(BLOCK, 0))


def reference(spec: ScaleTransposeSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``along_k`` and ``along_n``."""
    scales = inputs["scales"] if spec.batched else inputs["scales"][None]
    along_k = torch.stack([_packed(one) for one in scales])
    along_n = torch.stack([_packed(one.T) for one in scales])
    if not spec.batched:
        return {"along_k": along_k[0], "along_n": along_n[0]}
    return {"along_k": along_k, "along_n": along_n}
