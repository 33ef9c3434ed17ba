"""Wide values: 64 elements of UB as one fp32 vector register, and back with one rounding.

Used inside ``T.SimdVF``. Buffers hold rows padded to whole registers, so that reading behind a row is reading
something, never nothing.
"""

from typing import Any

WIDE_VALUE_SOURCE = "kaas.kernel_library.vector.wide_values"
"""For ``Family.sources`` of a family that uses this module."""

TILELANG_DTYPE = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "e4m3": "float8_e4m3fn",
}


def load_wide(dtype: str, buffer: Any, *at: Any) -> Any:
    """64 elements of ``dtype`` as fp32."""
    import tilelang.ascend.language as T

    if dtype == "fp32":
        return T.simd.vld(buffer[at])
    spread = "UNPK4_B8" if dtype == "e4m3" else "UNPK_B16"
    return T.simd.vcvt(T.simd.vld(buffer[at], dist=spread), "float32", part=0)


def rounded(dtype: str, value: Any) -> Any:
    """fp32 to ``dtype``, not saturating: overflow becomes infinity and NaN stays NaN, as on the host."""
    import tilelang.ascend.language as T

    return value if dtype == "fp32" else T.simd.vcvt(value, TILELANG_DTYPE[dtype], sat=False, part=0)


def store_rounded(dtype: str, buffer: Any, value: Any, *at: Any) -> Any:
    """Store 64 elements that :func:`rounded` made."""
    import tilelang.ascend.language as T

    return T.simd.vsts(buffer[at], value, dist="NORM_B32" if dtype == "fp32" else "PK_B32")


def store_wide(dtype: str, buffer: Any, value: Any, *at: Any) -> Any:
    """Round 64 fp32 values to ``dtype`` and store them."""
    return store_rounded(dtype, buffer, rounded(dtype, value), *at)


def widened(dtype: str, value: Any) -> Any:
    """What :func:`rounded` made, as fp32 again."""
    import tilelang.ascend.language as T

    return value if dtype == "fp32" else T.simd.vcvt(value, "float32", part=0)


def unroll_of(vectors: int) -> int:
    """How many registers of a row to work on side by side, so that none waits for the one before."""
    return next(count for count in (4, 2, 1) if vectors % count == 0)
