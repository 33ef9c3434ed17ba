"""Select program: rows of bf16 in chunks through UB, the three passes of a radix select over each."""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.entry import Entry, looked_at
from kaas.kernel_library.vector.radix_select import (
    BASE,
    COUNT,
    COUNTER_ROWS,
    HIGH,
    LANES,
    LOW,
    RADIX_SELECT_SOURCE,
    STATE_ROWS,
    Selection,
    begin_row,
    choose,
    count_high_bytes,
    count_low_bytes,
    find_bucket,
    find_threshold,
    finish_row,
)
from kaas.kernel_library.vector.shared_select import (
    EXCHANGED,
    SHARED_SELECT_SOURCE,
    exchange,
    find_share,
    merge_counts,
)

SELECT_SOURCES = (
    "kaas.kernel_library.choice",
    "kaas.kernel_library.entry",
    "kaas.kernel_library.vector.row_pipeline",
    "kaas.kernel_library.vector.row_plan",
    RADIX_SELECT_SOURCE,
    SHARED_SELECT_SOURCE,
    "kaas.kernel_library.vector.select_program",
)
"""Modules that decide what a family built on this program generates."""

OUT_STAGES = 2
FLAG_PITCH = 8
"""int32 elements of a UB row that holds one flag."""
MAX_SLOTS = 6
"""Chunks that lie in UB; their flags have the ids below it."""
HIGH_EVENT, LOW_EVENT = MAX_SLOTS, MAX_SLOTS + 1
RESULT_EVENT = 0


class SelectShape(msgspec.Struct, frozen=True):
    """What a program is specialised on; ``rows`` and ``vocab`` may be symbols of the entry."""

    topk: int
    rows: Any
    vocab: Any
    wide: bool
    end: bool
    offset: bool
    values: bool
    flags: bool
    chunk: int
    slots: int
    parts: int

    @property
    def pitch(self) -> int:
        """Elements of a UB row of results: whole vector registers."""
        return -(-self.topk // LANES) * LANES


class _Buffers(msgspec.Struct, frozen=True):
    """UB of a block: the row at hand, results by stage, the counters of all parts of a shared row."""

    selection: Selection
    out: tuple[Any, Any, Any]
    turn: Any
    parts: Any


def _ring_pass(
    shape: SelectShape, work: Callable[[Any, Any, Any, Any], Any], *, first: bool = False, last: bool = False
) -> Any:
    """A macro ``(call, buffers, row, begin, count)``: ``work(selection, slot, at, length)`` for each chunk.

    ``at`` is the chunk's place behind ``begin``. What has no more chunks than there are slots is loaded by
    the first pass and stays until the last one is through with it; the rest is loaded by every pass.
    """
    import tilelang.ascend.language as T

    chunk, slots = shape.chunk, shape.slots

    @T.macro
    def load(call: Any, values: Any, row: Any, slot: Any, start: Any, length: Any) -> None:
        T.ascend_wait_flag("V_MTE2", slot)
        T.copy(
            looked_at(call.input, (shape.rows, shape.vocab), "int16")[row, start : start + length],
            values[slot, 0:length],
        )
        T.ascend_set_flag("MTE2_V", slot)
        T.ascend_wait_flag("MTE2_V", slot)

    @T.macro
    def run(call: Any, buffers: Any, row: Any, begin: Any, count: Any) -> None:
        chunks = T.alloc_var("int32")
        start = T.alloc_var("int32")
        at = T.alloc_var("int32")
        length = T.alloc_var("int32")
        chunks = T.truncdiv(count + chunk - 1, chunk)
        start = buffers.turn[0]
        for i in T.serial(chunks):
            slot = (start + i) % slots
            at = i * chunk
            length = T.min(chunk, count - at)
            if first or chunks > slots:
                load(call, buffers.selection.values, row, slot, begin + at, length)
            work(buffers.selection, slot, at, length)
            if last or chunks > slots:
                T.ascend_set_flag("V_MTE2", slot)
        if last or chunks > slots:
            buffers.turn[0] = (start + chunks) % slots

    return run


def _passes(shape: SelectShape) -> tuple[Any, Any, Any]:
    """The three passes."""
    import tilelang.ascend.language as T

    count_high, count_low = count_high_bytes(shape.topk), count_low_bytes(shape.topk)
    choose_from = choose(wide=shape.wide)

    @T.macro
    def high(selection: Any, slot: Any, at: Any, length: Any) -> None:
        count_high(selection, slot, length)

    @T.macro
    def low(selection: Any, slot: Any, at: Any, length: Any) -> None:
        count_low(selection, slot, length)

    return (
        _ring_pass(shape, high, first=True),
        _ring_pass(shape, low),
        _ring_pass(shape, choose_from, last=True),
    )


def _block(shape: SelectShape, cores: int, *, shared: bool, body: Callable[[Any, Any, Any], Any]) -> Any:
    """A macro of the call around ``body(call, buffers, core)``: UB, and the flags of rings that are free."""
    import tilelang.ascend.language as T

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            values_ub = T.alloc_shared((shape.slots, shape.chunk), "int16")
            counters_ub = T.alloc_shared((COUNTER_ROWS, LANES), "uint16")
            state_ub = T.alloc_shared((STATE_ROWS, LANES), "int16")
            chosen_ub = T.alloc_shared((3, shape.pitch), "int16")
            index_ub = T.alloc_shared((OUT_STAGES, shape.pitch), "int32")
            value_ub = T.alloc_shared((OUT_STAGES, shape.pitch), "int16") if shape.values else None
            flag_ub = T.alloc_shared((OUT_STAGES, FLAG_PITCH), "int32") if shape.flags else None
            parts_ub = T.alloc_shared((shape.parts, EXCHANGED), "int16") if shared else None
            turn = T.alloc_local((1,), "int32")
            turn[0] = 0
            for slot in T.serial(shape.slots):
                T.ascend_set_flag("V_MTE2", slot)
            for stage in T.serial(OUT_STAGES):
                T.ascend_set_flag("MTE3_V", stage)
            value_bytes = T.view(values_ub, (shape.slots, 2 * shape.chunk), "uint8")
            selection = Selection(values_ub, value_bytes, counters_ub, state_ub, chosen_ub)
            body(call, _Buffers(selection, (index_ub, value_ub, flag_ub), turn, parts_ub), core)
            for slot in T.serial(shape.slots):
                T.ascend_wait_flag("V_MTE2", slot)
            for stage in T.serial(OUT_STAGES):
                T.ascend_wait_flag("MTE3_V", stage)

    return block


def select_program(entry: Entry, shape: SelectShape, cores: int) -> Any:
    """The TileLang function in which every core takes every ``cores``-th row."""
    import tilelang.ascend.language as T

    topk, rows, vocab = shape.topk, shape.rows, shape.vocab
    begin, bucket, threshold = begin_row(), find_bucket(), find_threshold()
    high, low, choosing = _passes(shape)
    finish = finish_row(topk, wide=shape.wide, values=shape.values, flags=shape.flags)

    @T.macro
    def store(call: Any, out: Any, row: Any, stage: Any) -> None:
        index_ub, value_ub, flag_ub = out
        T.ascend_set_flag("V_MTE3", stage)
        T.ascend_wait_flag("V_MTE3", stage)
        T.copy(index_ub[stage, 0:topk], call.output_idx[row, 0:topk])
        if shape.values:
            T.copy(value_ub[stage, 0:topk], looked_at(call.output_val, (rows, topk), "int16")[row, 0:topk])
        if shape.flags:
            T.copy(flag_ub[stage, 0:1], call.nan_found[row : row + 1])
        T.ascend_set_flag("MTE3_V", stage)

    @T.macro
    def body(call: Any, buffers: Any, core: Any) -> None:
        turns = T.alloc_var("int32")
        row = T.alloc_var("int32")
        count = T.alloc_var("int32")
        rank = T.alloc_var("int32")
        offset = T.alloc_var("int32")
        # A variable, because TVM turns a loop whose extent is known to be 0 or 1 into its body.
        turns = T.truncdiv(rows + cores - 1 - core, cores)
        for i in T.serial(turns):
            stage = i % OUT_STAGES
            row = i * cores + core
            count = vocab
            if shape.end:
                count = T.max(T.min(call.end[row], vocab), 0)
            rank = T.min(count, topk)
            offset = 0
            if shape.offset:
                offset = call.output_idx_offset[row]
            begin(buffers.selection)
            high(call, buffers, row, 0, count)
            bucket(buffers.selection, rank)
            low(call, buffers, row, 0, count)
            threshold(buffers.selection, rank)
            choosing(call, buffers, row, 0, count)
            T.ascend_wait_flag("MTE3_V", stage)
            finish(buffers.selection, call, buffers.out, stage, rank, offset)
            store(call, buffers.out, row, stage)

    return entry.prim_func(_block(shape, cores, shared=False, body=body))


def shared_select_program(entry: Entry, shape: SelectShape, cores: int) -> Any:
    """The TileLang function in which a few cores share each row, as many as there are for one."""
    import tilelang.ascend.language as T

    topk, rows, vocab = shape.topk, shape.rows, shape.vocab
    begin, bucket, threshold = begin_row(), find_bucket(), find_threshold()
    high, low, choosing = _passes(shape)
    tell_high, tell_low = exchange(HIGH, event=HIGH_EVENT), exchange(LOW, event=LOW_EVENT)
    merge_high, merge_low = merge_counts(topk, HIGH), merge_counts(topk, LOW)
    share = find_share()
    finish = finish_row(topk, wide=shape.wide, values=shape.values, flags=shape.flags)

    @T.macro
    def store(call: Any, out: Any, row: Any, stage: Any, base: Any, length: Any, is_first: Any) -> None:
        index_ub, value_ub, flag_ub = out
        T.ascend_set_flag("V_MTE3", stage)
        T.ascend_wait_flag("V_MTE3", stage)
        if length > 0:
            T.copy(index_ub[stage, 0:length], call.output_idx[row, base : base + length])
            if shape.values:
                T.copy(
                    value_ub[stage, 0:length],
                    looked_at(call.output_val, (rows, topk), "int16")[row, base : base + length],
                )
        if shape.flags and is_first:
            T.copy(flag_ub[stage, 0:1], call.nan_found[row : row + 1])
        T.ascend_set_flag("MTE3_V", stage)

    @T.macro
    def body(call: Any, buffers: Any, core: Any) -> None:
        parts = T.alloc_var("int32")
        together = T.alloc_var("int32")
        waves = T.alloc_var("int32")
        part = T.alloc_var("int32")
        held = T.alloc_var("int32")
        row = T.alloc_var("int32")
        count = T.alloc_var("int32")
        rank = T.alloc_var("int32")
        offset = T.alloc_var("int32")
        start = T.alloc_var("int32")
        size = T.alloc_var("int32")
        base = T.alloc_var("int32")
        chosen = T.alloc_var("int32")
        length = T.alloc_var("int32")
        parts = T.max(T.min(T.truncdiv(cores, T.max(rows, 1)), shape.parts), 1)
        together = T.truncdiv(cores, parts)
        waves = T.truncdiv(rows + together - 1, together)
        part = core % parts
        for wave in T.serial(waves):
            stage = wave % OUT_STAGES
            row = wave * together + T.truncdiv(core, parts)
            held = T.if_then_else(T.truncdiv(core, parts) < together and row < rows, parts, 0)
            count = 0
            offset = 0
            if held > 0:
                count = vocab
                if shape.end:
                    count = T.max(T.min(call.end[row], vocab), 0)
                if shape.offset:
                    offset = call.output_idx_offset[row]
            rank = T.min(count, topk)
            size = T.truncdiv(T.truncdiv(count + parts - 1, parts) + LANES - 1, LANES) * LANES
            start = T.min(part * size, count)
            size = T.min(size, count - start)
            begin(buffers.selection)
            high(call, buffers, row, start, size)
            tell_high(call, buffers.selection, buffers.parts, core, core - part, held)
            merge_high(buffers.selection, buffers.parts, held)
            bucket(buffers.selection, rank)
            low(call, buffers, row, start, size)
            tell_low(call, buffers.selection, buffers.parts, core, core - part, held)
            merge_low(buffers.selection, buffers.parts, held)
            threshold(buffers.selection, rank)
            share(buffers.selection, buffers.parts, held, part)
            choosing(call, buffers, row, start, size)
            T.ascend_set_flag("V_S", RESULT_EVENT)
            T.ascend_wait_flag("V_S", RESULT_EVENT)
            base = T.cast(buffers.selection.state[BASE, 0], "int32")
            chosen = T.cast(buffers.selection.state[COUNT, 0], "int32")
            T.ascend_set_flag("S_V", RESULT_EVENT)
            T.ascend_wait_flag("S_V", RESULT_EVENT)
            # The last part fills up what the row has too few values for.
            length = T.if_then_else(part == parts - 1, topk - base, chosen)
            T.ascend_wait_flag("MTE3_V", stage)
            if held > 0:
                finish(buffers.selection, call, buffers.out, stage, chosen, offset + start)
                store(call, buffers.out, row, stage, base, length, part == 0)
            else:
                T.ascend_set_flag("MTE3_V", stage)

    return entry.prim_func(_block(shape, cores, shared=True, body=body))
