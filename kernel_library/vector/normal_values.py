"""Normal values: random words as values of the standard normal distribution, in vector registers.

The highest bit of a word is the sign. The others say how far out the value is: m makes the probability
p = (m + 1/2) / 2^32 of lying further out on that side, so that the distribution reaches to 6.3.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macro below is a language of its own: what it annotates and calls are no Python types.

from typing import Any

NORMAL_VALUE_SOURCE = "kaas.kernel_library.vector.normal_values"
"""For ``Family.sources`` of a family that uses this module."""

# The quantile as a polynomial in s = (t - MIDDLE) * STRETCH, -1 to 1, with t = sqrt(-2 ln p): a Chebyshev fit
# of degree 14 to the float64 quantile, highest power first. In fp32 it is within 6e-7.
MIDDLE = 3.970557928085327
STRETCH = 0.35801899433135986
COEFFICIENTS = (
    -0.00289555243,
    0.00383208715,
    0.00502793724,
    -0.0055947681,
    -0.00791687518,
    0.00945778936,
    -0.00219642301,
    0.00581897795,
    -0.0151919946,
    0.0248824228,
    -0.0416674539,
    0.0737382546,
    -0.1351666,
    3.056844,
    3.36898589,
)
MAGNITUDE = 0x7FFFFFFF
SIGN = 0x80000000


def normal_value() -> Any:
    """A macro from a register of 64 uint32 words to 64 fp32 values."""
    import tilelang.ascend.language as T

    @T.macro
    def step(value: Any, place: Any, coefficient: float) -> None:
        T.simd.vmadd(value[0], place, T.simd.vdup(T.float32(coefficient), "float32"))

    @T.macro
    def run(word: Any) -> Any:
        value = T.simd.alloc_local((1,), "float32")
        place = T.simd.alloc_var("float32")
        magnitude = T.reinterpret(T.simd.vand(word, T.simd.vdup(T.uint32(MAGNITUDE), "uint32")), "int32x64")
        # Added in fp32: half a unit is lost where it does not count.
        steps = T.simd.vadds(T.simd.vcvt(magnitude, "float32"), T.float32(0.5))
        logarithm = T.simd.vln(T.simd.vmuls(steps, T.float32(2.0**-32)))
        distance = T.simd.vsqrt(T.simd.vmuls(logarithm, T.float32(-2.0)))
        place = T.simd.vmuls(T.simd.vadds(distance, T.float32(-MIDDLE)), T.float32(STRETCH))
        value[0] = T.simd.vdup(T.float32(COEFFICIENTS[0]), "float32")
        for coefficient in COEFFICIENTS[1:]:
            step(value, place, coefficient)
        sign = T.simd.vand(word, T.simd.vdup(T.uint32(SIGN), "uint32"))
        return T.reinterpret(T.simd.vxor(T.reinterpret(value[0], "uint32x64"), sign), "float32x64")

    return run
