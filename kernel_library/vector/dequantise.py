"""Dequantise: rows of e4m3 or e2m1 in UB times their scales, as bf16 or fp32, on the vector cores."""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any, Literal

from kaas.kernel_library.vector.block_values import CHUNK, ValueType, halves_of
from kaas.kernel_library.vector.row_plan import VECTOR_LANES

DEQUANTISE_SOURCES = ("kaas.kernel_library.vector.block_values", "kaas.kernel_library.vector.dequantise")
"""For ``Family.sources`` of a family built on this module."""

HALF_CHUNK = CHUNK // 2

WideType = Literal["bf16", "fp32"]


def store_wide(dtype: WideType) -> Any:
    """A macro ``(buffer, slot, row, at, value)``: 64 fp32 values to UB, rounded to ``dtype``.

    Overflow becomes infinity and NaN stays NaN.
    """
    import tilelang.ascend.language as T

    @T.macro
    def bf16(buffer: Any, slot: Any, row: Any, at: Any, value: Any) -> None:
        rounded = T.simd.vcvt(value, "bfloat16", sat=False, part=0)
        T.simd.vsts(buffer[slot, row, at], rounded, dist="PK_B32")

    @T.macro
    def fp32(buffer: Any, slot: Any, row: Any, at: Any, value: Any) -> None:
        T.simd.vsts(buffer[slot, row, at], value)

    return bf16 if dtype == "bf16" else fp32


def dequantise_row(source: ValueType, dtype: WideType, pitch: int, *, share: int = 1) -> Any:
    """A macro ``(held, out_ub, slot, row)`` for a ``T.SimdVF``: a row of ``pitch`` values times its scales.

    ``held`` is the pair of values and fp32 scales; ``share`` rows have a row of scales in common.
    """
    import tilelang.ascend.language as T

    halves, store = halves_of(source, share=share), store_wide(dtype)

    @T.macro
    def dequantise(held: Any, out_ub: Any, slot: Any, row: Any) -> None:
        for half in T.serial(T.uint16(pitch // HALF_CHUNK)):
            at = T.cast(half, "int32") * HALF_CHUNK
            low, high = halves(held, slot, row, at)
            store(out_ub, slot, row, at, low)
            store(out_ub, slot, row, at + VECTOR_LANES, high)

    return dequantise
