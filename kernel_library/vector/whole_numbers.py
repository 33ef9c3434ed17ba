"""Whole numbers in fp32 registers: exact remainders, which vector cores have no instruction for."""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macro below is a language of its own: what it annotates and calls are no Python types.

from typing import Any

WHOLE_NUMBERS_SOURCE = "kaas.kernel_library.vector.whole_numbers"
"""For ``Family.sources`` of a family that uses this module."""


def remainder() -> Any:
    """A macro from whole fp32 numbers, 0 to 2^24 - 1, and positive divisors to the remainders, exactly."""
    import tilelang.ascend.language as T

    @T.macro
    def run(value: Any, divisor: Any) -> Any:
        # A register variable is opaque; TVM would follow bound values back through all their uses.
        rest = T.simd.alloc_var("float32")
        # The quotient may be off by one either way; the product and the difference are exact.
        about = T.simd.vcvt(T.simd.vdiv(value, divisor), "int32", round="ROUND_F")
        rest = T.simd.vsub(value, T.simd.vmul(T.simd.vcvt(about, "float32"), divisor))
        rest = T.simd.vsel(T.simd.vadd(rest, divisor), rest, T.simd.vcmps(rest, 0.0, op="lt"))
        rest = T.simd.vsel(T.simd.vsub(rest, divisor), rest, T.simd.vcmp(rest, divisor, op="ge"))
        return rest

    return run
