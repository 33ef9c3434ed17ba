"""Reference of engram_sinkhorn_momentum in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.engram_sinkhorn_momentum import EngramSinkhornMomentumSpec


def reference(spec: EngramSinkhornMomentumSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The updated momentum and the iteration's first matrix in float64."""
    share = (1 - spec.beta1) * inputs["grad"].double()
    momentum = spec.beta1 * inputs["momentum_buffer"].double() + share
    ahead = spec.beta1 * momentum + share
    return {"momentum_buffer": momentum, "sinkhorn_input": ahead if spec.nesterov else momentum}
