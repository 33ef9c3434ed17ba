"""Sinkhorn rows: rows of a matrix scaled by row and column, in UB, and their Euclidean norms.

Not to be confused with sinkhorn lanes, where a whole small matrix lies in one lane.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macro below is a language of its own: what it annotates and calls are no Python types.

from typing import Any

from kaas.kernel_library.vector.row_plan import VECTOR_LANES
from kaas.kernel_library.vector.wide_values import WIDE_VALUE_SOURCE, unroll_of

SINKHORN_ROW_SOURCES = (WIDE_VALUE_SOURCE, "kaas.kernel_library.vector.sinkhorn_rows")
"""For ``Family.sources`` of a family that uses this module."""


def scale_row(columns: int) -> Any:
    """A macro ``(matrix_ub, column_ub, slot, row, factor)`` that scales one fp32 row in place.

    The row of ``columns`` elements, a multiple of 64, becomes ``factor * row * column_ub``, multiplied in
    this order. Returns its norm in every lane. ``factor`` is a register.
    """
    import tilelang.ascend.language as T

    vectors = columns // VECTOR_LANES
    unroll = unroll_of(vectors)

    @T.macro
    def run(matrix_ub: Any, column_ub: Any, slot: Any, row: Any, factor: Any) -> Any:
        squares = T.simd.alloc_local((unroll,), "float32")
        for i in T.unroll(unroll, explicit=True):
            squares[i] = T.simd.vdup(0.0, "float32")
        for group in T.serial(T.uint16(vectors // unroll)):
            for i in T.unroll(unroll, explicit=True):
                at = (T.cast(group, "int32") * unroll + i) * VECTOR_LANES
                by_row = T.simd.vmul(factor, T.simd.vld(matrix_ub[slot, row, at]))
                value = T.simd.vmul(by_row, T.simd.vld(column_ub[at]))
                T.simd.vmula(squares[i], value, value)
                T.simd.vsts(matrix_ub[slot, row, at], value)
        for i in T.unroll(1, unroll, explicit=True):
            squares[0] = T.simd.vadd(squares[0], squares[i])
        return T.simd.vsqrt(T.simd.vdupv(T.simd.vcadd(squares[0])))

    return run
