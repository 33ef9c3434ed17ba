"""Reference of reduce_fused: the same steps in the same order, each rounded as the kernel rounds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.fused_arithmetic import fused_multiply_add
from kaas.kernel_library.references.number_formats import encode_float8

if TYPE_CHECKING:
    from kaas.kernel_library.families.reduce_fused import ReduceFusedSpec


def reference(spec: ReduceFusedSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``y`` in its dtype."""
    positions = inputs["token_topk_to_pos"]
    total = torch.zeros((len(positions), spec.hidden))
    for k in range(spec.topk):
        chosen = positions[:, k] >= 0
        place = positions[chosen, k].long()
        factor = torch.ones(len(place))
        if spec.weights:
            factor = inputs["weights"][chosen, k]
        if spec.row_scales:
            factor = factor * inputs["x_scales"][place]
        rows = inputs["x"][place].float()
        total[chosen] = fused_multiply_add(rows, factor[:, None], total[chosen])
    if spec.scale:
        total = total * inputs["scale"]
    if spec.dtype_y == "e4m3":
        return {"y": encode_float8(total, "e4m3")}
    return {"y": total.to(inputs["x"].dtype)}
