"""Vector side of attention: scores become weights as they arrive, and weighted values are summed in UB.

A row of queries keeps the largest score m so far, the sum l of exp(score - m) and the sum of values weighed
by the same exponentials. A block of keys with a larger score multiplies l and the values by exp(old m - new
m) first. Each vector core has half of a tile's rows. Weights leave as bf16 for the cube's L1.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.attention.attention_cube import (
    ACCUMULATOR_EMPTY,
    ACCUMULATOR_FULL,
    WEIGHTS_FULL,
)
from kaas.kernel_library.attention.attention_tiles import CHUNK, WEIGHT_SLOTS, AttentionTiles
from kaas.kernel_library.attention.finished_rows import finished_rows
from kaas.kernel_library.cube.cube_pipeline import CORE_PAIR, VECTOR_LANES, Rings
from kaas.proto.launch import Parameter

LEAST_SCORE = -3.4028234663852886e38
"""What m starts with: finite, so that exp(-inf - m) is 0 and never NaN."""
SPARSE_PITCH = 8
"""fp32 values from row to row of lse in UB where each is stored on its own: transfers start at 32 bytes."""
BLOCK_ELEMENTS = 16
"""bf16 values in 32 bytes: a column of L1."""
RESULT_EVENT = WEIGHT_SLOTS
"""Of V and MTE3, beside those of the slots of weights."""
LARGEST_SCALE = 2.0**32
"""Beyond it scores that bf16 queries and keys have in practice become infinite in fp32, and weights NaN."""


def softmax_scale() -> Parameter:
    """The scalar that scores are multiplied with."""
    return Parameter(name="softmax_scale", role="scalar", dtype="fp32", largest=LARGEST_SCALE)


class AttentionSoftmax(msgspec.Struct, frozen=True):
    """Macros of the vector side.

    ``open(accumulator_ub, weights_l1, vector_core)`` returns the state. ``tile(state, call, place, blocks)``
    takes one tile through ``blocks`` blocks of keys, the same as the cube side's, and stores it; ``close()``
    ends it.
    """

    open: Callable[[Any, Any, Any], Any]
    tile: Callable[[Rings, Any, Any, Any], Any]
    close: Callable[[], Any]

    def visitor(self, state: Rings, call: Any) -> Any:
        """A macro ``visit(place, blocks)`` for a walk over tiles, the counterpart of the cube side's."""
        import tilelang.ascend.language as T

        @T.macro
        def weigh(place: Any, blocks: Any) -> None:
            self.tile(state, call, place, blocks)

        return weigh


def attention_softmax(
    tiles: AttentionTiles,
    *,
    store: Callable[[Rings, Any, Any], Any],
    lse_pitch: int,
    limits: Callable[[Rings, Any], Any] | None = None,
    sees: Callable[[Rings, Any, int], Any] | None = None,
    ahead: Callable[[Rings, Any, Any, Any], Any] | None = None,
    finish_rows: Callable[[Rings, Any], Any] | None = None,
    as_part: bool = False,
) -> AttentionSoftmax:
    """The macros for ``tiles``; ``call.softmax_scale`` multiplies the scores.

    ``limits(state, place)``, in a vector function, returns int32 lanes: the first key, counted from the
    tile's first one, that each of this core's rows does not see. ``store(state, call, place)`` copies
    ``state.result_ub`` [rows/2, d_v] and ``state.lse_ub`` to global memory, on MTE3 only; the latter is
    [rows/2] if ``lse_pitch`` is 1, and column 0 of [rows/2, SPARSE_PITCH] if it is that.
    ``state.vector_core`` is 0 or 1. ``as_part`` says that these are not all keys of a row: what is stored is
    ``state.values`` [rows/2, d_v] fp32 instead of the rounded output.

    ``sees(state, ring, column)`` stands for ``limits`` where all rows see the same keys: the mask of 64 keys
    of a block, from ``column`` on; ``ring`` is the block's number modulo ``WEIGHT_SLOTS``. Blocks are whole
    registers of keys then. ``ahead(state, place, step, blocks)`` runs before each block's scores are awaited,
    and once more behind the last one. ``finish_rows(state, place)`` stands for :func:`finished_rows`.
    """
    import tilelang.ascend.language as T

    half, keys, d_v = tiles.rows // 2, tiles.keys, tiles.d_v
    finish = finished_rows(half, d_v, lse_pitch, as_part=as_part)
    acc_slots = tiles.accumulator_slots
    second = keys > VECTOR_LANES
    # One block of room behind the rows of a column spreads the columns over the banks of UB.
    pitch = half + 1

    @T.macro
    def allocate(state: Any, accumulator_ub: Any, weights_l1: Any) -> None:
        weights_ub = T.alloc_shared((WEIGHT_SLOTS, keys // BLOCK_ELEMENTS, pitch, BLOCK_ELEMENTS), "bfloat16")
        values_ub = T.alloc_shared((half * d_v,), "float32")
        result_ub = T.alloc_shared((half, d_v), "bfloat16")
        lse_ub = T.alloc_shared((half,) if lse_pitch == 1 else (half, lse_pitch), "float32")
        largest = T.alloc_shared((VECTOR_LANES,), "float32")
        total = T.alloc_shared((VECTOR_LANES,), "float32")
        factors = T.alloc_shared((WEIGHT_SLOTS, VECTOR_LANES), "float32")
        limits_ub = T.alloc_shared((VECTOR_LANES,), "int32")
        turn = T.alloc_var("int32", init=0)
        block_turn = T.alloc_var("int32", init=0)
        state.keep(weights_ub=weights_ub, values_ub=values_ub, result_ub=result_ub, lse_ub=lse_ub)
        state.keep(values=T.view(values_ub, (half, d_v)))
        state.keep(weights=T.view(weights_ub, (WEIGHT_SLOTS, keys * pitch)))
        state.keep(result=T.view(result_ub, (half * d_v,)), lse=T.view(lse_ub, (half * lse_pitch,)))
        state.keep(largest=largest, total=total, factors=factors, limits_ub=limits_ub)
        state.keep(accumulator=T.view(accumulator_ub, (acc_slots, half * CHUNK)), weights_l1=weights_l1)
        state.keep(turn=turn.buffer, block_turn=block_turn.buffer)
        for slot in T.serial(acc_slots):
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", ACCUMULATOR_EMPTY + slot)
        T.ascend_set_flag("MTE3_V", RESULT_EVENT)

    def open_half(accumulator_ub: Any, weights_l1: Any, vector_core: Any) -> Any:
        state = Rings()
        allocate(state, accumulator_ub, weights_l1)
        state.keep(vector_core=vector_core)
        return state

    @T.macro
    def start(state: Any, place: Any) -> None:
        with T.SimdVF():
            T.simd.vsts(state.largest[0], T.simd.vdup(T.float32(LEAST_SCORE), "float32"))
            T.simd.vsts(state.total[0], T.simd.vdup(T.float32(0.0), "float32"))
            if limits is not None:
                T.simd.vsts(state.limits_ub[0], limits(state, place))

    @T.macro
    def seen(
        state: Any, call: Any, slot: Any, ring: Any, row: Any, column: int, first: Any, limit: Any
    ) -> Any:
        """64 scores of a row; those of keys that it does not see are -inf."""
        scaled = T.simd.vmuls(T.simd.vld(state.accumulator[slot, row * CHUNK + column]), call.softmax_scale)
        if sees is None:
            inside = T.simd.vcmp(T.simd.vci(first + column, "int32"), limit, op="lt")
        else:
            inside = sees(state, ring, column)
        return T.simd.vsel(scaled, T.simd.vdup(T.float32(float("-inf")), "float32"), inside)

    @T.macro
    def put(state: Any, slot: Any, row: Any, column: int, weight: Any) -> None:
        """64 weights of a row, or what is left of it, to their columns of 32 bytes."""
        narrow = T.simd.vcvt(weight, "bfloat16", sat=False, part=0)
        packed = T.reinterpret("bfloat16x128", T.simd.vpack(T.reinterpret("uint32x64", narrow)))
        lanes = T.simd.update_mask(T.uint32(min(keys - column, VECTOR_LANES)), 16)
        T.simd.vsstb(packed, state.weights[slot, column * pitch + row * BLOCK_ELEMENTS], pitch << 16, lanes)

    @T.macro
    def weigh(state: Any, call: Any, slot: Any, ring: Any, first: Any) -> None:
        with T.SimdVF():
            for row_16 in T.serial(T.uint16(half)):
                row = T.cast(row_16, "int32")
                limit = None if limits is None else T.simd.vld(state.limits_ub[row], dist="BRC_B32")
                if limits is not None and keys % VECTOR_LANES:
                    # Lanes behind the block hold anything.
                    limit = T.simd.vmins(limit, first + keys)
                low = seen(state, call, slot, ring, row, 0, first, limit)
                best = low
                if second:
                    high = seen(state, call, slot, ring, row, VECTOR_LANES, first, limit)
                    best = T.simd.vmax(low, high)
                before = T.simd.vld(state.largest[row], dist="BRC_B32")
                now = T.simd.vmax(before, T.simd.vdupv(T.simd.vcmax(best)))
                factor = T.simd.vexpdif(before, now)
                weight = T.simd.vexpdif(low, now)
                put(state, ring, row, 0, weight)
                if second:
                    other = T.simd.vexpdif(high, now)
                    put(state, ring, row, VECTOR_LANES, other)
                    weight = T.simd.vadd(weight, other)
                total = T.simd.vld(state.total[row], dist="BRC_B32")
                total = T.simd.vadd(T.simd.vmul(total, factor), T.simd.vcadd(weight))
                T.simd.vsts(state.largest[row], now, dist="ONEPT_B32")
                T.simd.vsts(state.total[row], total, dist="ONEPT_B32")
                T.simd.vsts(state.factors[ring, row], factor, dist="ONEPT_B32")

    @T.macro
    def softmax(state: Any, call: Any, block: Any) -> None:
        slot = state.turn[0] % acc_slots
        ring = (state.block_turn[0] + block) % WEIGHT_SLOTS
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_V", ACCUMULATOR_FULL + slot)
        # The last weights of both slots, in UB and L1, are not needed any more: what they weighed was added.
        weigh(state, call, slot, ring, block * keys)
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", ACCUMULATOR_EMPTY + slot)
        T.ascend_set_flag("V_MTE3", ring)
        T.ascend_wait_flag("V_MTE3", ring)
        T.ascend_nd2nz_post_copy(
            state.weights_l1[ring, state.vector_core * half, 0],
            state.weights_ub[ring, 0, 0, 0],
            half,
            keys,
            tiles.rows,
            "bfloat16_t",
        )
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE3", WEIGHTS_FULL + ring)
        state.turn[0] += 1

    @T.macro
    def add(state: Any, slot: Any, ring: Any, column: Any, is_first: bool) -> None:
        with T.SimdVF():
            for row_16 in T.serial(T.uint16(half)):
                row = T.cast(row_16, "int32")
                factor = T.simd.vld(state.factors[ring, row], dist="BRC_B32")
                for i in T.unroll(CHUNK // VECTOR_LANES, explicit=True):
                    at = row * d_v + column + i * VECTOR_LANES
                    value = T.simd.vld(state.accumulator[slot, row * CHUNK + i * VECTOR_LANES])
                    if not is_first:
                        old = T.simd.vmul(T.simd.vld(state.values_ub[at]), factor)
                        value = T.simd.vadd(old, value)
                    T.simd.vsts(state.values_ub[at], value)

    @T.macro
    def accumulate(state: Any, block: Any) -> None:
        ring = (state.block_turn[0] + block) % WEIGHT_SLOTS
        for chunk in T.serial(d_v // CHUNK):
            slot = state.turn[0] % acc_slots
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_V", ACCUMULATOR_FULL + slot)
            if block == 0:
                add(state, slot, ring, chunk * CHUNK, True)
            else:
                add(state, slot, ring, chunk * CHUNK, False)
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", ACCUMULATOR_EMPTY + slot)
            state.turn[0] += 1

    @T.macro
    def tile(state: Any, call: Any, place: Any, blocks: Any) -> None:
        steps = T.alloc_var("int32")
        # Kept in a variable: TVM turns a loop whose extent is known to be 0 or 1 into its body.
        steps = T.if_then_else(blocks > 0, blocks + 1, 0)
        if as_part:
            T.ascend_wait_flag("MTE3_V", RESULT_EVENT)
        start(state, place)
        for step in T.serial(steps):
            if ahead is not None:
                ahead(state, place, step, blocks)
            if step < blocks:
                softmax(state, call, step)
            if step > 0:
                accumulate(state, step - 1)
        state.block_turn[0] += blocks
        if not as_part:
            T.ascend_wait_flag("MTE3_V", RESULT_EVENT)
        if finish_rows is None:
            finish(state)
        else:
            finish_rows(state, place)
        T.ascend_set_flag("V_MTE3", RESULT_EVENT)
        T.ascend_wait_flag("V_MTE3", RESULT_EVENT)
        store(state, call, place)
        T.ascend_set_flag("MTE3_V", RESULT_EVENT)

    @T.macro
    def close() -> None:
        T.ascend_wait_flag("MTE3_V", RESULT_EVENT)

    return AttentionSoftmax(open_half, tile, close)
