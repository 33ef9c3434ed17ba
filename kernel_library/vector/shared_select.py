"""Shared select: a row's radix select in parts, on cores that tell each other their counts.

Every core counts the bytes of its part, stores its counters in global memory, passes a barrier of all cores
and loads those of all parts of its row. From their sums each finds the same bucket and the same k-th value,
and from the parts before its own where its share of the results begins. Every core passes every barrier,
whether it has a part or not.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any

from kaas.kernel_library.vector.radix_select import (
    BASE,
    BUCKET,
    COUNTER_ROWS,
    EQUALS,
    HIGH,
    LANES,
    LIMIT,
    LOW,
    LOW_BUCKET,
    MAX_K,
    WORST,
)

SHARED_SELECT_SOURCE = "kaas.kernel_library.vector.shared_select"
"""For ``Family.sources`` of a family that uses this module."""

MAX_PARTS = 32
"""Parts of a row."""
ALL_STORED = 0
"""Id of the barrier of all vector cores."""
EXCHANGED = COUNTER_ROWS * LANES
"""16-bit words that a core tells the others."""


def parts_bytes(parts: int) -> int:
    """UB of the counters of all parts of a row."""
    return parts * EXCHANGED * 2


def exchange(part: int, *, event: int) -> Any:
    """A macro ``(call, selection, parts_ub, core, leader, parts)``: counters of all parts come to each.

    ``part`` is HIGH, for the counters of the first pass and what it found of NaN, or LOW. ``call.exchange``
    is int16 [cores or more, EXCHANGED] in global memory, ``parts_ub`` int16 [parts, EXCHANGED]; ``leader`` is
    the core of the row's first part, ``parts`` how many there are, 0 for a core without one. ``event`` is
    the id of a flag from V to MTE3 and one from MTE2 to V.
    """
    import tilelang.ascend.language as T

    start, words = (HIGH * LANES, LOW * LANES) if part == HIGH else (LOW * LANES, EXCHANGED - LOW * LANES)

    @T.macro
    def run(call: Any, row: Any, parts_ub: Any, core: Any, leader: Any, parts: Any) -> None:
        T.ascend_set_flag("V_MTE3", event)
        T.ascend_wait_flag("V_MTE3", event)
        T.copy(
            T.view(row.counters, (EXCHANGED,), "int16")[start : start + words],
            call.exchange[core, start : start + words],
        )
        T.ascend_sync_inter_arrive("PIPE_MTE3", ALL_STORED)
        T.ascend_sync_inter_wait("PIPE_MTE2", ALL_STORED)
        if parts > 0:
            T.copy(
                call.exchange[leader : leader + parts, start : start + words],
                parts_ub[0:parts, start : start + words],
            )
        T.ascend_set_flag("MTE2_V", event)
        T.ascend_wait_flag("MTE2_V", event)

    return run


def merge_counts(k: int, part: int) -> Any:
    """A macro ``(selection, parts_ub, parts)``: the sums over all parts replace the own counters."""
    import tilelang.ascend.language as T

    @T.macro
    def run(row: Any, parts_ub: Any, parts: Any) -> None:
        with T.SimdVF():
            sums = T.simd.alloc_local((2,), "uint16")
            worst = T.simd.alloc_var("uint8")
            worst = T.simd.vdup(0, "uint8")
            for i in T.unroll(2, explicit=True):
                sums[i] = T.simd.vdup(0, "uint16")
            for q in T.serial(T.cast(parts, "uint16")):
                for i in T.unroll(2, explicit=True):
                    counts = T.simd.vld(parts_ub[T.cast(q, "int32"), (part + i) * LANES])
                    total = T.simd.vadd(sums[i], T.reinterpret(counts, "uint16x128"))
                    sums[i] = T.simd.vmins(total, T.uint16(k + 1))
                if part == HIGH:
                    other = T.simd.vld(parts_ub[T.cast(q, "int32"), WORST * LANES])
                    worst = T.simd.vmax(worst, T.reinterpret(other, "uint8x256"))
            for i in T.unroll(2, explicit=True):
                T.simd.vsts(row.counters[part + i, 0], sums[i], dist="NORM_B16")
            if part == HIGH:
                T.simd.vsts(row.counters[WORST, 0], T.reinterpret(worst, "uint16x128"), dist="NORM_B16")

    return run


def find_share() -> Any:
    """A macro ``(selection, parts_ub, parts, part)`` after the threshold is known.

    It leaves in the state how many results the parts before ``part`` have, and how many values equal to the
    threshold these have taken.
    """
    import tilelang.ascend.language as T

    @T.macro
    def run(row: Any, parts_ub: Any, parts: Any, part: Any) -> None:
        with T.SimdVF():
            lanes = T.simd.vci(T.int16(0), "int16")
            places = T.simd.vmuls(lanes, T.int16(EXCHANGED))
            there = T.simd.vcmps(lanes, T.cast(parts, "int16"), op="lt")
            one = T.simd.vdup(1, "int16")
            limit = T.simd.vld(row.state[LIMIT, 0])
            bucket = T.simd.vand(T.simd.vld(row.state[BUCKET, 0]), T.simd.vdup(0xFF, "int16"))
            low_bucket = T.simd.vld(row.state[LOW_BUCKET, 0])
            # Lane q is part q. Counts before a bucket are the counts of the one before it.
            high_place = T.simd.vsub(T.simd.vadd(places, bucket), one)
            low_place = T.simd.vadd(places, low_bucket)
            before_low_place = T.simd.vsub(low_place, one)
            above_high = T.simd.vgather2(
                parts_ub[0, HIGH * LANES],
                T.reinterpret(high_place, "uint16x128"),
                T.simd.vcmps(bucket, T.int16(0), there, op="gt"),
            )
            above_low = T.simd.vgather2(
                parts_ub[0, LOW * LANES],
                T.reinterpret(before_low_place, "uint16x128"),
                T.simd.vcmps(low_bucket, T.int16(0), there, op="gt"),
            )
            up_to = T.simd.vgather2(parts_ub[0, LOW * LANES], T.reinterpret(low_place, "uint16x128"), there)
            above = T.simd.vadd(above_high, above_low)
            equal = T.simd.vsub(up_to, above_low)
            earlier = T.simd.vcmps(lanes, T.cast(part, "int16"), there, op="lt")
            above_sum = T.reinterpret(T.simd.vcadd(above, earlier), "int16x128")
            # More than the limit is never taken; a sum of many parts must fit 16 bits.
            equal_sum = T.reinterpret(T.simd.vmins(T.simd.vcadd(equal, earlier), MAX_K), "int16x128")
            taken = T.simd.vmin(T.simd.vdupv(equal_sum), limit)
            T.simd.vsts(row.state[EQUALS, 0], taken, dist="NORM_B16")
            T.simd.vsts(row.state[BASE, 0], T.simd.vadd(T.simd.vdupv(above_sum), taken), dist="NORM_B16")

    return run
