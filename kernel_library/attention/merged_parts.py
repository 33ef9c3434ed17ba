"""Merged parts: outputs over parts of the keys of the same queries become the output over all of them.

For kernels that give the parts of a request's keys to several cores. Each part's output weighs exp(its
log-sum-exp - m), as one key would. Eight rows at a time pass a vector core; parts are added in order, so that
the sum depends on nothing but the parts.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.attention.attention_softmax import LEAST_SCORE, RESULT_EVENT
from kaas.kernel_library.attention.attention_tiles import LSE_ROW_BYTES
from kaas.kernel_library.attention.finished_rows import finished_rows
from kaas.kernel_library.cube.cube_pipeline import VECTOR_LANES, Rings

MERGED_ROWS = 8
"""Rows that are merged at a time."""
STAGES = 2


def merged_parts_bytes(d_v: int) -> int:
    """UB that the parts in flight take."""
    return STAGES * MERGED_ROWS * d_v * 4 + STAGES * VECTOR_LANES * 4 + MERGED_ROWS * LSE_ROW_BYTES


class MergedParts(msgspec.Struct, frozen=True):
    """Macros of a vector core that has no more tiles.

    ``open(state)`` takes the state of :func:`attention_softmax` on. ``merge(state, call, place, parts)``
    merges the rows of ``place``, of which there are ``parts`` parts, and stores them; ``close()`` ends it.
    """

    open: Callable[[Rings], Any]
    merge: Callable[[Rings, Any, Any, Any], Any]
    close: Callable[[], Any]


def merged_parts(
    d_v: int,
    lse_pitch: int,
    *,
    load: Callable[[Any, Any, Any, Any, Any], Any],
    store: Callable[[Rings, Any, Any], Any],
) -> MergedParts:
    """The macros for outputs of ``d_v`` values.

    ``load(call, place, part, values_ub, lse_ub)`` copies a part's outputs, [MERGED_ROWS, d_v] fp32, and its
    log-sum-exps, [MERGED_ROWS], on MTE2 only. ``store(state, call, place)`` copies the first rows of
    ``state.result_ub`` and ``state.lse_ub`` to global memory, on MTE3 only.
    """
    import tilelang.ascend.language as T

    finish = finished_rows(MERGED_ROWS, d_v, lse_pitch, as_part=False)

    @T.macro
    def open_merge(state: Any) -> None:
        parts_ub = T.alloc_shared((STAGES, MERGED_ROWS, d_v), "float32")
        part_lse = T.alloc_shared((STAGES, VECTOR_LANES), "float32")
        turn = T.alloc_var("int32", init=0)
        lse_ub = T.alloc_shared((MERGED_ROWS,) if lse_pitch == 1 else (MERGED_ROWS, lse_pitch), "float32")
        state.keep(lse_ub=lse_ub, lse=T.view(lse_ub, (MERGED_ROWS * lse_pitch,)))
        state.keep(parts_ub=parts_ub, part_lse=part_lse, part_turn=turn.buffer)
        state.keep(parts=T.view(parts_ub, (STAGES, MERGED_ROWS * d_v)))
        for slot in T.serial(STAGES):
            T.ascend_set_flag("V_MTE2", slot)

    @T.macro
    def start(state: Any) -> None:
        with T.SimdVF():
            T.simd.vsts(state.largest[0], T.simd.vdup(T.float32(LEAST_SCORE), "float32"))
            T.simd.vsts(state.total[0], T.simd.vdup(T.float32(0.0), "float32"))

    @T.macro
    def add(state: Any, slot: Any, is_first: bool) -> None:
        with T.SimdVF():
            for row_16 in T.serial(T.uint16(MERGED_ROWS)):
                row = T.cast(row_16, "int32")
                lse = T.simd.vld(state.part_lse[slot, row], dist="BRC_B32")
                before = T.simd.vld(state.largest[row], dist="BRC_B32")
                now = T.simd.vmax(before, lse)
                weight = T.simd.vexpdif(lse, now)
                factor = T.simd.vexpdif(before, now)
                total = T.simd.vld(state.total[row], dist="BRC_B32")
                total = T.simd.vadd(T.simd.vmul(total, factor), weight)
                T.simd.vsts(state.largest[row], now, dist="ONEPT_B32")
                T.simd.vsts(state.total[row], total, dist="ONEPT_B32")
                for i in T.unroll(d_v // VECTOR_LANES, explicit=True):
                    at = row * d_v + i * VECTOR_LANES
                    value = T.simd.vmul(T.simd.vld(state.parts[slot, at]), weight)
                    if not is_first:
                        old = T.simd.vmul(T.simd.vld(state.values_ub[at]), factor)
                        value = T.simd.vadd(old, value)
                    T.simd.vsts(state.values_ub[at], value)

    @T.macro
    def merge(state: Any, call: Any, place: Any, parts: Any) -> None:
        start(state)
        for part in T.serial(parts):
            slot = state.part_turn[0] % STAGES
            T.ascend_wait_flag("V_MTE2", slot)
            load(call, place, part, state.parts_ub[slot, :, :], state.part_lse[slot, 0:MERGED_ROWS])
            T.ascend_set_flag("MTE2_V", slot)
            T.ascend_wait_flag("MTE2_V", slot)
            if part == 0:
                add(state, slot, True)
            else:
                add(state, slot, False)
            T.ascend_set_flag("V_MTE2", slot)
            state.part_turn[0] += 1
        T.ascend_wait_flag("MTE3_V", RESULT_EVENT)
        finish(state)
        T.ascend_set_flag("V_MTE3", RESULT_EVENT)
        T.ascend_wait_flag("V_MTE3", RESULT_EVENT)
        store(state, call, place)
        T.ascend_set_flag("MTE3_V", RESULT_EVENT)

    @T.macro
    def close() -> None:
        for slot in T.serial(STAGES):
            T.ascend_wait_flag("V_MTE2", slot)

    return MergedParts(open_merge, merge, close)
