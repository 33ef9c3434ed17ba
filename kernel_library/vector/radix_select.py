"""Radix select: the k largest bf16 values of a row that passes through UB in chunks, in the row's order.

Values rank by their bits: plus infinity first, plus zero above minus zero. Read as a descending rank, the
high byte of a value is one of 256 buckets and so is the low byte. Three passes over the row find the answer:
the first counts high bytes and finds the bucket that holds the k-th value, the second counts the low bytes
of that bucket, which gives the k-th value itself, the third writes down what lies above it and as many values
equal to it as are missing, the first ones. Every pass adds to its state in UB chunk by chunk, so a row may be
of any length. All of it stays on the vector pipe: nothing has to wait for the scalar unit.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any

import msgspec

RADIX_SELECT_SOURCE = "kaas.kernel_library.vector.radix_select"
"""For ``Family.sources`` of a family that uses this module."""

LANES = 128
"""bf16 values of one vector register."""
BYTES = 256
"""Values whose high, or low, bytes fill one vector register."""
MAX_CHUNK = 16384
"""Values of a chunk: with the at most ``MAX_K`` counted before, a 16-bit counter holds them."""
MAX_K = 4096
MARK = 0x3F3F3F3F
"""The indices of a row with a NaN."""

# Rows of the counters in UB. HIGH and LOW: counts up to and including each bucket, 128 buckets to a row, the
# best bucket first. WORST: bytes, all at most 0x80 unless there is a NaN.
HIGH, WORST, LOW, COUNTER_ROWS = 0, 2, 3, 5
# Rows of the state in UB; every lane of a row is the same.
BUCKET, LOW_BUCKET, BETTER, FLIP, THRESHOLD, LIMIT, COUNT, EQUALS, BASE, STATE_ROWS = range(10)

MAGNITUDE = 0x7FFF
INFINITY_LOW_BYTE = 0x80
"""Of two values with all exponent bits set, the low byte tells infinity from NaN, whose one is larger."""


class Selection(msgspec.Struct, frozen=True):
    """UB of the row at hand, as TileLang buffers.

    ``values`` int16 [slots, chunk] and ``value_bytes`` uint8 [slots, 2 * chunk] are two views of the chunks;
    ``counters`` uint16 [COUNTER_ROWS, 128]; ``state`` int16 [STATE_ROWS, 128]; ``chosen`` int16 [3, k padded
    to 128]: the chosen values' bits, the low and the high halves of their places.
    """

    values: Any
    value_bytes: Any
    counters: Any
    state: Any
    chosen: Any


def fixed_bytes(k: int) -> int:
    """UB of a selection of ``k`` besides the chunks."""
    return 2 * LANES * (COUNTER_ROWS + STATE_ROWS) + 3 * 2 * -(-k // LANES) * LANES


def begin_row() -> Any:
    """A macro of a selection: nothing is counted, nothing chosen."""
    import tilelang.ascend.language as T

    @T.macro
    def run(row: Any) -> None:
        with T.SimdVF():
            for i in T.unroll(COUNTER_ROWS, explicit=True):
                T.simd.vsts(row.counters[i, 0], T.simd.vdup(0, "uint16"), dist="NORM_B16")
            for i in T.unroll(STATE_ROWS, explicit=True):
                T.simd.vsts(row.state[i, 0], T.simd.vdup(0, "int16"), dist="NORM_B16")

    return run


def count_high_bytes(k: int) -> Any:
    """A macro ``(selection, slot, length)`` that adds a chunk of ``length`` values to the first counters."""
    return _count_bytes(k, HIGH)


def count_low_bytes(k: int) -> Any:
    """The same for low bytes of the values in the bucket of the k-th one."""
    return _count_bytes(k, LOW)


def _count_bytes(k: int, part: int) -> Any:
    import tilelang.ascend.language as T

    @T.macro
    def run(row: Any, slot: Any, length: Any) -> None:
        vectors = T.alloc_var("int32")
        vectors = T.truncdiv(length + BYTES - 1, BYTES)
        with T.SimdVF():
            sums = T.simd.alloc_local((2,), "uint16")
            sums[0] = T.simd.vld(row.counters[part, 0])
            sums[1] = T.simd.vld(row.counters[part + 1, 0])
            if part == HIGH:
                worst = T.simd.alloc_var("uint8")
                worst = T.reinterpret(T.simd.vld(row.counters[WORST, 0]), "uint8x256")
                magnitude = T.simd.vdup(0x7F, "uint8")
                none = T.simd.vdup(0, "uint8")
            else:
                bucket = T.reinterpret(T.simd.vld(row.state[BUCKET, 0]), "uint8x256")
                is_positive = T.simd.vcmps(bucket, T.uint8(0x80), op="lt")
                high_byte = T.simd.vsel(T.simd.vxor(bucket, T.simd.vdup(0x7F, "uint8")), bucket, is_positive)
                flip = T.simd.vsel(T.simd.vdup(0xFF, "uint8"), T.simd.vdup(0, "uint8"), is_positive)
            for i in T.serial(T.cast(vectors, "uint16")):
                there = T.simd.update_mask(T.cast(length - T.cast(i, "int32") * BYTES, "uint32"), 8)
                low, high = T.simd.vld2(
                    row.value_bytes[slot, T.cast(i, "int32") * 2 * BYTES], dist="DINTLV_B8"
                )
                if part == HIGH:
                    positive = T.simd.vcmps(high, T.uint8(0x80), op="lt")
                    key = T.simd.vsel(T.simd.vxor(high, magnitude), high, positive)
                    T.simd.chistv2(sums[0], key, there, 0)
                    T.simd.chistv2(sums[1], key, there, 1)
                    suspect = T.simd.vcmp(T.simd.vand(high, magnitude), magnitude, there, op="eq")
                    worst = T.simd.vmax(worst, T.simd.vsel(low, none, suspect))
                else:
                    same = T.simd.vcmp(high, high_byte, there, op="eq")
                    rest = T.simd.vxor(low, flip)
                    T.simd.chistv2(sums[0], rest, same, 0)
                    T.simd.chistv2(sums[1], rest, same, 1)
            if part == HIGH:
                T.simd.vsts(row.counters[WORST, 0], T.reinterpret(worst, "uint16x128"), dist="NORM_B16")
            # Beyond k + 1 nothing is told apart, and counters of long rows must not overflow.
            T.simd.vsts(row.counters[part, 0], T.simd.vmins(sums[0], T.uint16(k + 1)), dist="NORM_B16")
            T.simd.vsts(row.counters[part + 1, 0], T.simd.vmins(sums[1], T.uint16(k + 1)), dist="NORM_B16")

    return run


def find_bucket() -> Any:
    """A macro ``(selection, rank)`` after the first pass: the bucket of the ``rank``-th value, 1 the best."""
    import tilelang.ascend.language as T

    find = _bucket_of_rank()

    @T.macro
    def run(row: Any, rank: Any) -> None:
        with T.SimdVF():
            wanted = T.simd.vdup(T.cast(rank, "int16"), "int16")
            bucket, better = find(row.counters, HIGH, wanted)
            # Both bytes of a lane, so that the second pass can compare bytes with it.
            both = T.simd.vadd(bucket, T.simd.vshls(bucket, T.int16(8)))
            T.simd.vsts(row.state[BUCKET, 0], both, dist="NORM_B16")
            T.simd.vsts(row.state[BETTER, 0], better, dist="NORM_B16")

    return run


def find_threshold() -> Any:
    """A macro ``(selection, rank)`` after the second pass: the ``rank``-th value, and how many like it.

    Rank 0, of an empty row, takes nothing.
    """
    import tilelang.ascend.language as T

    find = _bucket_of_rank()

    @T.macro
    def run(row: Any, rank: Any) -> None:
        with T.SimdVF():
            better = T.simd.vld(row.state[BETTER, 0])
            wanted = T.simd.vsub(T.simd.vdup(T.cast(rank, "int16"), "int16"), better)
            low, better_low = find(row.counters, LOW, wanted)
            high = T.simd.vand(T.simd.vld(row.state[BUCKET, 0]), T.simd.vdup(-256, "int16"))
            key = T.simd.vadd(high, low)
            # Negative values grow with their bits the wrong way round: all are compared upside down then.
            magnitude = T.simd.vdup(MAGNITUDE, "int16")
            is_positive = T.simd.vcmps(key, T.int16(0), op="ge")
            bits = T.simd.vsel(T.simd.vxor(key, magnitude), key, is_positive)
            flip = T.simd.vsel(T.simd.vdup(0, "int16"), magnitude, is_positive)
            T.simd.vsts(row.state[LOW_BUCKET, 0], low, dist="NORM_B16")
            T.simd.vsts(row.state[FLIP, 0], flip, dist="NORM_B16")
            T.simd.vsts(row.state[THRESHOLD, 0], T.simd.vxor(bits, flip), dist="NORM_B16")
            T.simd.vsts(row.state[LIMIT, 0], T.simd.vsub(wanted, better_low), dist="NORM_B16")

    return run


def _bucket_of_rank() -> Any:
    """A macro ``(counters, part, rank)``: the first bucket whose count reaches ``rank``, the count before."""
    import tilelang.ascend.language as T

    @T.macro
    def run(counters: Any, part: int, rank: Any) -> Any:
        first = T.reinterpret(T.simd.vld(counters[part, 0]), "int16x128")
        second = T.reinterpret(T.simd.vld(counters[part + 1, 0]), "int16x128")
        first_before = T.simd.vcmp(first, rank, op="lt")
        second_before = T.simd.vcmp(second, rank, op="lt")
        none = T.simd.vdup(MAGNITUDE, "int16")
        zero = T.simd.vdup(0, "int16")
        reached = T.simd.vmin(
            T.simd.vsel(none, T.simd.vci(T.int16(0), "int16"), first_before),
            T.simd.vsel(none, T.simd.vci(T.int16(LANES), "int16"), second_before),
        )
        # Counts only grow: the last one below the rank is the largest one below it.
        before = T.simd.vmax(T.simd.vsel(first, zero, first_before), T.simd.vsel(second, zero, second_before))
        bucket = T.simd.vdupv(T.simd.vcmin(reached))
        better = T.simd.vdupv(T.simd.vcmax(before))
        return bucket, better

    return run


def choose(*, wide: bool) -> Any:
    """A macro ``(selection, slot, begin, length)`` of the third pass over a chunk that starts at ``begin``.

    The chosen ones follow those of earlier chunks. ``wide``: places may have more than 16 bits.
    """
    import tilelang.ascend.language as T

    @T.macro
    def run(row: Any, slot: Any, begin: Any, length: Any) -> None:
        vectors = T.alloc_var("int32")
        origin = T.alloc_var("int32")
        vectors = T.truncdiv(length + LANES - 1, LANES)
        origin = begin
        with T.SimdVF():
            count = T.simd.alloc_var("int16")
            equals = T.simd.alloc_var("int16")
            count = T.simd.vld(row.state[COUNT, 0])
            equals = T.simd.vld(row.state[EQUALS, 0])
            flip = T.simd.vld(row.state[FLIP, 0])
            threshold = T.simd.vld(row.state[THRESHOLD, 0])
            limit = T.simd.vld(row.state[LIMIT, 0])
            one = T.simd.vdup(1, "int16")
            zero = T.simd.vdup(0, "int16")
            if wide:
                high = T.simd.vdup(T.cast(T.shift_right(origin, 16), "int16"), "int16")
            for i in T.serial(T.cast(vectors, "uint16")):
                at = T.cast(i, "int32") * LANES
                there = T.simd.update_mask(T.cast(length - at, "uint32"), 16)
                bits = T.simd.vld(row.values[slot, at])
                key = T.simd.vxor(bits, flip)
                above = T.simd.vcmp(key, threshold, there, op="gt")
                equal = T.simd.vcmp(key, threshold, there, op="eq")
                rank = T.simd.vadd(equals, T.simd.vusqz(equal, "int16"))
                taken = T.simd.vcmp(rank, limit, equal, op="lt")
                chosen = T.simd.por(above, taken, there)
                position = T.simd.vadd(count, T.simd.vusqz(chosen, "int16"))
                target = T.reinterpret(position, "uint16x128")
                low = T.simd.vci(T.cast(origin + at, "int16"), "int16")
                T.simd.vscatter(bits, row.chosen[0, 0], target, chosen)
                T.simd.vscatter(low, row.chosen[1, 0], target, chosen)
                if wide:
                    T.simd.vscatter(high, row.chosen[2, 0], target, chosen)
                count = T.simd.vdupv(T.simd.vadd(position, T.simd.vsel(one, zero, chosen)), pos="POS_HIGHEST")
                # Beyond the limit nothing is taken; a long row of equal values must not overflow.
                seen = T.simd.vdupv(T.simd.vadd(rank, T.simd.vsel(one, zero, equal)), pos="POS_HIGHEST")
                equals = T.simd.vmin(seen, limit)
            T.simd.vsts(row.state[COUNT, 0], count, dist="NORM_B16")
            T.simd.vsts(row.state[EQUALS, 0], equals, dist="NORM_B16")

    return run


def finish_row(k: int, *, wide: bool, values: bool, flags: bool) -> Any:
    """A macro that turns what was chosen into a row of results in stage ``stage`` of its UB buffers.

    Arguments: the selection; the call, whose scalars idx_oob_fill_value (int32) and value_oob_fill_value
    (fp32, rounded to bf16) lie behind what was chosen; ``out``, a tuple of UB buffers int32 [stages, k
    padded], int16 of the same shape or None, int32 [stages, 8] or None; ``stage``; ``rank``, how many were
    chosen; ``offset`` that is added to their places. A row with a NaN has :data:`MARK` for all indices, the
    fill for all values and 1 for its flag.
    """
    import tilelang.ascend.language as T

    @T.macro
    def indices(places: Any, first: Any, rank: Any, offset: Any, fill: Any, is_nan: Any) -> Any:
        there = T.simd.vcmps(T.simd.vci(first, "int32"), rank, op="lt")
        moved = T.simd.vadds(T.reinterpret(places, "int32x64"), offset)
        index = T.simd.vsel(moved, fill, there)
        return T.simd.vsel(T.simd.vdup(MARK, "int32"), index, is_nan)

    @T.macro
    def run(row: Any, call: Any, out: Any, stage: Any, rank: Any, offset: Any) -> None:
        index_ub, value_ub, flag_ub = out
        with T.SimdVF():
            bytes_of_two = T.reinterpret(T.simd.vld(row.counters[WORST, 0]), "int16x128")
            low_bytes = T.simd.vand(bytes_of_two, T.simd.vdup(0xFF, "int16"))
            high_bytes = T.simd.vand(T.simd.vshrs(bytes_of_two, T.int16(8)), T.simd.vdup(0xFF, "int16"))
            worst = T.simd.vdupv(T.simd.vcmax(T.simd.vmax(low_bytes, high_bytes)))
            no_nan = T.simd.vcmps(worst, T.int16(INFINITY_LOW_BYTE), op="le")
            # The same 16 bits twice in every 32.
            is_nan = T.simd.vcmps(T.reinterpret(worst, "int32x64"), INFINITY_LOW_BYTE << 16 | 0xFFFF, op="gt")
            index_fill = T.simd.vdup(call.idx_oob_fill_value, "int32")
            if flags:
                found = T.simd.vsel(T.simd.vdup(1, "int32"), T.simd.vdup(0, "int32"), is_nan)
                T.simd.vsts(flag_ub[stage, 0], found, dist="ONEPT_B32")
            if values:
                fill = T.simd.vdup(call.value_oob_fill_value, "float32")
                rounded = T.reinterpret(T.simd.vcvt(fill, "bfloat16", sat=False), "int16x128")
                value_behind = T.simd.vdupv(rounded)
            for i in T.serial(T.uint16(-(-k // LANES))):
                at = T.cast(i, "int32") * LANES
                low = T.simd.vld(row.chosen[1, at])
                high = T.simd.vld(row.chosen[2, at]) if wide else T.simd.vdup(0, "int16")
                front, back = T.simd.vintlv(low, high)
                T.simd.vsts(index_ub[stage, at], indices(front, at, rank, offset, index_fill, is_nan))
                behind = at + LANES // 2
                T.simd.vsts(index_ub[stage, behind], indices(back, behind, rank, offset, index_fill, is_nan))
                if values:
                    bits = T.simd.vld(row.chosen[0, at])
                    order = T.simd.vci(T.cast(at, "int16"), "int16")
                    held = T.simd.vcmps(order, T.cast(rank, "int16"), no_nan, op="lt")
                    T.simd.vsts(value_ub[stage, at], T.simd.vsel(bits, value_behind, held), dist="NORM_B16")

    return run
