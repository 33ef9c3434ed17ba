"""rmsnorm: y = x * rsqrt(mean(x^2) + eps) (* weight), optionally after adding a residual."""

from __future__ import annotations

from kaas.kernel_library.family import BuiltKernel, Family
from kaas.kernel_library.spec import (
    Dim,
    Dtype,
    KernelSpec,
    require_bool,
    require_dim,
    require_float,
    require_int,
    require_one_of,
)
from kaas.proto.target import Target


class RmsNormSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="rmsnorm"):
    """Root-mean-square normalisation of rows on the vector cores, fp32 inside.

    Arguments in call order: x[tokens, hidden]; residual[tokens, hidden] if ``residual`` (updated in place to
    x + residual, which is what gets normalised); weight[hidden] if ``weight``; y[tokens, hidden]. All tensors
    have ``dtype``; ``eps`` is compiled in.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: int
    dtype: Dtype = "bf16"
    residual: bool = False
    weight: bool = True
    eps: float = 1e-6
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 64, 32768, multiple_of=16)
        require_one_of(self.dtype, "dtype", ("bf16", "fp16", "fp32"))
        require_bool(self.residual, "residual")
        require_bool(self.weight, "weight")
        require_float(self.eps, "eps", 0.0, 1.0)
        require_dim(self.tokens, "tokens")


def build(spec: RmsNormSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores and UB size."""
    raise NotImplementedError


FAMILY = Family(
    name="rmsnorm",
    summary="root-mean-square normalisation of rows, optional residual and weight",
    spec_type=RmsNormSpec,
    build=build,
    module=__name__,
)
