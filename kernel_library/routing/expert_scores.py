"""Expert scores: a router's logits as scores, and the slope of a score from the score itself.

``sqrtsoftplus`` is sqrt(log(1 + exp(x))), ``sigmoid`` 1 / (1 + exp(-x)), ``identity`` x, and ``softmax`` is
taken over the row. All are computed so that their relative error stays within a few units in the last place
from the largest logits down to where the score itself leaves the range of normal fp32 numbers; that takes
polynomials, because neither log(1 + q) nor 1 - exp(-u) keeps its digits for small arguments.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from collections.abc import Sequence
from typing import Any, Literal

EXPERT_SCORES_SOURCE = "kaas.kernel_library.routing.expert_scores"
"""For ``Family.sources`` of a family that uses this module."""

Scoring = Literal["sqrtsoftplus", "sigmoid", "softmax", "identity"]
SCORINGS: tuple[Scoring, ...] = ("sqrtsoftplus", "sigmoid", "softmax", "identity")

# Fitted over Chebyshev nodes of 0..1 with least relative error, in powers of 2q - 1, the constant first.
SQRT_LOG1P_RATIO = (
    0.9005166292190552,
    -0.08010043948888779,
    0.014844954945147038,
    -0.0033774226903915405,
    0.0008481767727062106,
    -0.00022562796948477626,
    6.108985689934343e-05,
    -1.7282081898883916e-05,
    6.443275651690783e-06,
    -1.925065362229361e-06,
)
"""sqrt(log(1 + q) / q), within 2^-24."""
EXPM1_RATIO = (
    0.7869386672973633,
    -0.18040801584720612,
    0.028775356709957123,
    -0.0035032446030527353,
    0.0003442227025516331,
    -2.833067628671415e-05,
    2.0184907043585554e-06,
    -1.2437493523975718e-07,
)
"""(1 - exp(-q)) / q, within 2^-23."""


def _polynomial(coefficients: Sequence[float]) -> Any:
    """A macro of q that evaluates a polynomial in 2q - 1."""
    import tilelang.ascend.language as T

    @T.macro
    def run(q: Any) -> Any:
        place = T.simd.vadds(T.simd.vadd(q, q), -1.0)
        value = T.simd.alloc_var("float32")
        value = T.simd.vdup(coefficients[-1], "float32")
        for coefficient in coefficients[-2::-1]:
            T.simd.vmadd(value, place, T.simd.vdup(coefficient, "float32"))
        return value

    return run


def score(scoring: Scoring) -> Any:
    """A macro from 64 logits to their scores; not for ``softmax``, which needs the row."""
    import tilelang.ascend.language as T

    ratio = _polynomial(SQRT_LOG1P_RATIO)

    @T.macro
    def sqrt_softplus(x: Any) -> Any:
        # With a = exp(-|x|/2): log(1 + exp(-|x|)) = (a * ratio(a^2))^2, and softplus adds x where x > 0.
        a = T.simd.vexp(T.simd.vmuls(T.simd.vabs(x), -0.5))
        root = T.simd.vmul(a, ratio(T.simd.vmul(a, a)))
        square = T.simd.alloc_var("float32")
        square = x
        T.simd.vmula(square, root, root)
        return T.simd.vsel(T.simd.vsqrt(square), root, T.simd.vcmps(x, 0.0, op="gt"))

    @T.macro
    def sigmoid(x: Any) -> Any:
        one = T.simd.vdup(1.0, "float32")
        e = T.simd.vexp(T.simd.vmuls(T.simd.vabs(x), -1.0))
        numerator = T.simd.vsel(one, e, T.simd.vcmps(x, 0.0, op="ge"))
        return T.simd.vdiv(numerator, T.simd.vadd(one, e))

    @T.macro
    def identity(x: Any) -> Any:
        return x

    return {"sqrtsoftplus": sqrt_softplus, "sigmoid": sigmoid, "identity": identity}[scoring]


def slope(scoring: Scoring) -> Any:
    """A macro from 64 scores to the derivative of each by its logit; not for ``softmax``."""
    import tilelang.ascend.language as T

    ratio = _polynomial(EXPM1_RATIO)

    @T.macro
    def sqrt_softplus(s: Any) -> Any:
        # sigmoid(x) / (2 s), and exp(-s^2) = 1 - sigmoid(x).
        square = T.simd.vmul(s, s)
        half = T.simd.vmuls(s, 0.5)
        small = T.simd.vmul(half, ratio(square))
        rest = T.simd.vsub(T.simd.vdup(0.5, "float32"), T.simd.vmuls(T.simd.vexp(T.simd.vneg(square)), 0.5))
        return T.simd.vsel(small, T.simd.vdiv(rest, s), T.simd.vcmps(square, 1.0, op="lt"))

    @T.macro
    def sigmoid(s: Any) -> Any:
        return T.simd.vmul(s, T.simd.vsub(T.simd.vdup(1.0, "float32"), s))

    @T.macro
    def identity(s: Any) -> Any:
        return T.simd.vdup(1.0, "float32")

    return {"sqrtsoftplus": sqrt_softplus, "sigmoid": sigmoid, "identity": identity}[scoring]
