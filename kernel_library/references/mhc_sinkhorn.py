"""Reference of mhc_sinkhorn in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from kaas.kernel_library.families.mhc_sinkhorn import MhcSinkhornSpec


def sinkhorn(x: torch.Tensor, repeat: int, eps: float) -> torch.Tensor:
    """The softmax of each row plus eps, then columns and rows normalised in turn; differentiable."""
    y = x.softmax(-1) + eps
    y = y / (y.sum(-2, keepdim=True) + eps)
    for _ in range(repeat - 1):
        y = y / (y.sum(-1, keepdim=True) + eps)
        y = y / (y.sum(-2, keepdim=True) + eps)
    return y


def reference(spec: MhcSinkhornSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``y`` in float64."""
    return {"y": sinkhorn(inputs["x"].double(), spec.repeat, spec.eps)}
