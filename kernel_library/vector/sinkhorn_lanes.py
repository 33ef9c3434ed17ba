"""Sinkhorn steps on token lanes: ``cell[r * streams + c]`` holds one matrix cell of 64 tokens."""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any

from kaas.kernel_library.vector.token_lanes import summed

SINKHORN_SOURCES = ("kaas.kernel_library.vector.sinkhorn_lanes",)


def lines(streams: int, *, rows: bool) -> list[list[int]]:
    """The cells of each row, or of each column."""
    if rows:
        return [[line * streams + i for i in range(streams)] for line in range(streams)]
    return [[i * streams + line for i in range(streams)] for line in range(streams)]


def softmax_of(streams: int) -> Any:
    """A macro of ``cell``: the softmax of each row, in place; the largest of a row is subtracted first."""
    import tilelang.ascend.language as T

    @T.macro
    def run(cell: Any) -> None:
        for row in lines(streams, rows=True):
            largest = T.simd.alloc_var("float32")
            total = T.simd.alloc_var("float32")
            largest = cell[row[0]]
            for i in row[1:]:
                largest = T.simd.vmax(largest, cell[i])
            for i in row:
                cell[i] = T.simd.vexpdif(cell[i], largest)
            total = summed([cell[i] for i in row])
            for i in row:
                cell[i] = T.simd.vdiv(cell[i], total)

    return run


def line_total(cell: Any, line: list[int], eps: float) -> Any:
    """The sum of a line's cells, in ascending order, plus eps."""
    import tilelang.ascend.language as T

    return T.simd.vadds(summed([cell[i] for i in line]), eps)


def normalised(streams: int, eps: float, *, rows: bool) -> Any:
    """A macro of ``cell``: each row (or column) divided by its sum plus ``eps``, in place."""
    import tilelang.ascend.language as T

    @T.macro
    def run(cell: Any) -> None:
        for line in lines(streams, rows=rows):
            total = T.simd.alloc_var("float32")
            total = line_total(cell, line, eps)
            for i in line:
                cell[i] = T.simd.vdiv(cell[i], total)

    return run
