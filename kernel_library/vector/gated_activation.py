"""Gated activation: what swiglu and its gradient have in common."""

from typing import Annotated, Any, Literal

from kaas.kernel_library.spec import require_float, within
from kaas.proto.errors import InvalidSpec

GATED_ACTIVATION_SOURCE = "kaas.kernel_library.vector.gated_activation"
"""For ``Family.sources`` of a family that uses this module."""

MAX_CLAMP = 1e30
Clamp = Annotated[float, within(0.0, MAX_CLAMP)] | None
FloatDtype = Literal["bf16", "fp32"]


def require_clamp(value: Any) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is ``None`` or a float that may bound activations."""
    if value is None:
        return
    try:
        require_float(value, "clamp", 0.0, MAX_CLAMP)
    except InvalidSpec as refusal:
        legal = f"a float from 0.0 to {MAX_CLAMP}, or null"
        raise InvalidSpec(refusal.message, field="clamp", legal=legal) from None


def require_weights_for_scaling(weights: bool, scaling: bool) -> None:
    """Raise :class:`InvalidSpec` for a scaling without the weights that it multiplies."""
    if scaling and not weights:
        message = "scaling multiplies the weights, which this spec has not"
        raise InvalidSpec(message, field="scaling", legal=[False])


def sigmoid_denominator(gate: Any) -> Any:
    """1 + exp(-gate); infinite for gates below -88."""
    import tilelang.ascend.language as T

    return T.simd.vadds(T.simd.vexpdif(T.simd.vdup(0.0, "float32"), gate), 1.0)


def silu(gate: Any) -> Any:
    """gate / (1 + exp(-gate)); a zero for gates below -88."""
    import tilelang.ascend.language as T

    return T.simd.vdiv(gate, sigmoid_denominator(gate))
