"""Part counts: how often each key occurs before one's own share of the rows, known to all vector cores.

Rows in order are cut into a fixed number of parts, however many cores there are. Every core counts the keys
of its own parts and writes the counts of each to global memory; when all are there, it adds up those of the
parts before its own. So each core numbers the rows of its share as if it had seen all rows before them.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any

from kaas.kernel_library.vector.row_plan import VECTOR_LANES

PART_COUNTS_SOURCE = "kaas.kernel_library.routing.part_counts"
"""For ``Family.sources`` of a family that uses this module."""

PARTS = 128
SUM_BYTES = PARTS * VECTOR_LANES * 4
"""UB of :func:`sums_of_parts`: 64 keys' counts in all parts."""
ALL_COUNTED = 0
"""Id of the barrier of all vector cores."""


def part_rows(rows: Any) -> Any:
    """Rows of every part but the last ones, at least 1."""
    import tilelang.ascend.language as T

    return T.max(T.truncdiv(rows + PARTS - 1, PARTS), 1)


def parts_per_core(cores: int) -> int:
    """Consecutive parts of each core; the last cores may have fewer or none."""
    return -(-PARTS // cores)


def pass_barrier() -> Any:
    """A macro: this core's stores are done, and its next loads wait until every vector core's are."""
    import tilelang.ascend.language as T

    @T.macro
    def run() -> None:
        T.ascend_sync_inter_arrive("PIPE_MTE3", ALL_COUNTED)
        T.ascend_sync_inter_wait("PIPE_MTE2", ALL_COUNTED)

    return run


def sums_of_parts(*, event: int) -> Any:
    """A macro ``(counts, part_ub, sums_ub, at, key, width, before, used)`` for ``width`` keys.

    ``counts`` is [PARTS, keys] in global memory, of which the first ``used`` parts have rows; the keys are
    those from ``key`` on. Into ``sums_ub``, int32 [2, whole registers], go from ``at`` on the sums over the
    parts below ``before``, and over all of them. ``part_ub`` is int32 [PARTS, 64]. The caller sets the flag
    V to MTE2 of ``event`` once before the first call and waits for it after the last one.
    """
    import tilelang.ascend.language as T

    @T.macro
    def add(part_ub: Any, sums_ub: Any, at: Any, before: Any, used: Any) -> None:
        with T.SimdVF():
            sums = T.simd.alloc_var("int32")
            sums = T.simd.vdup(0, "int32")
            for part in T.serial(T.cast(before, "uint16")):
                sums = T.simd.vadd(sums, T.simd.vld(part_ub[T.cast(part, "int32"), 0]))
            T.simd.vsts(sums_ub[0, at], sums)
            for part in T.serial(T.cast(used - before, "uint16")):
                sums = T.simd.vadd(sums, T.simd.vld(part_ub[before + T.cast(part, "int32"), 0]))
            T.simd.vsts(sums_ub[1, at], sums)

    @T.macro
    def run(
        counts: Any, part_ub: Any, sums_ub: Any, at: Any, key: Any, width: Any, before: Any, used: Any
    ) -> None:
        T.ascend_wait_flag("V_MTE2", event)
        if used > 0:
            T.copy(counts[0:used, key : key + width], part_ub[0:used, 0:width])
        T.ascend_set_flag("MTE2_V", event)
        T.ascend_wait_flag("MTE2_V", event)
        add(part_ub, sums_ub, at, before, used)
        T.ascend_set_flag("V_MTE2", event)

    return run
