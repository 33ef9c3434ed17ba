"""Reference of aux_fi in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.aux_fi import AuxFiSpec


def reference(spec: AuxFiSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``fi`` in float64."""
    indices = inputs["topk_idx"].long().flatten()
    known = indices[(indices >= 0) & (indices < spec.experts)]
    counts = torch.bincount(known, minlength=spec.experts).double()
    return {"fi": counts * spec.experts / max(inputs["topk_idx"].shape[0] * inputs["num_aux_topk"], 1)}
