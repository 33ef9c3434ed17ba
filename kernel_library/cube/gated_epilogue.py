"""Gated epilogue: an accumulator of gates and ups leaves as quantised activations, or one of sums as bf16.

A tile's accumulator has :data:`GATED` columns of gates and the same columns of ups beside them, so that the
activation needs nothing from outside of the tile. It is computed in place, over the gates, and quantised from
there: e4m3 with a scale for 32 columns, in pairs by row. The sums of a later product take the same way
without activation. Both use the same UB for what they store.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.cube.cube_pipeline import (
    CORE_PAIR,
    UB_EMPTY,
    UB_FULL,
    VECTOR_LANES,
    Rings,
    accumulator_hand_over,
)
from kaas.kernel_library.cube.gemm_tiles import GemmTiles
from kaas.kernel_library.vector.gated_activation import silu
from kaas.kernel_library.vector.quantise import QUANTISE_SOURCES, RowQuantiser, Work
from kaas.kernel_library.vector.row_plan import padded

GATED_EPILOGUE_SOURCES = (
    *QUANTISE_SOURCES,
    "kaas.kernel_library.vector.gated_activation",
    "kaas.kernel_library.cube.gated_epilogue",
)
"""For ``Family.sources`` of a family built on this module."""

GATED = 128
"""Columns of activations in a tile."""
WIDTH = 2 * GATED
"""Columns of a tile: gates and ups, or sums."""
PAIR = 64
"""Columns of one pair of scales."""
_QUANTISER = RowQuantiser(
    hidden=GATED, source="fp32", fmt="e4m3", round_sf=True, scales="e8m0", col_major=True
)
SCRATCH_ROW_BYTES = 528
"""UB bytes that a row of a half tile takes beside accumulators and results: magnitudes and inverse scales,
its weight and its scales, rounded up."""


class _InSlot:
    """One slot of a ring of UB buffers, indexed as if it were slot 0 of a ring of its own."""

    def __init__(self, buffer: Any, slot: Any) -> None:
        self._buffer, self._slot = buffer, slot

    def __getitem__(self, at: tuple[Any, ...]) -> Any:
        return self._buffer[(self._slot, *at[1:])]


class GatedEpilogue(msgspec.Struct, frozen=True):
    """The macros that take accumulators of ``WIDTH`` columns through the vector cores.

    Cube side: ``hand_over`` and ``close_cube`` as in a :class:`VectorEpilogue`. Vector side:
    ``open(accumulator_ub)`` returns the buffers; ``finish_gated(state, turn, place, row)`` and
    ``finish_sums(state, turn, place, row)`` make the half of a tile that begins at ``row``; ``close()`` ends
    it. ``place`` has ``end``, the row after the last one that may be written, and ``col``, the first column
    of the result; for gated tiles ``h``, ``h_scales`` and ``weights``, for sums ``y``, which are the call's
    tensors. Turns go on through both kinds of tiles.
    """

    hand_over: Callable[[Rings, Any, Any], Any]
    close_cube: Callable[[], Any]
    open: Callable[[Any], Any]
    finish_gated: Callable[[Any, Any, Any, Any], Any]
    finish_sums: Callable[[Any, Any, Any, Any], Any]
    close: Callable[[], Any]


def gated_epilogue(tiles: GemmTiles, *, factor: float, clamp: float | None) -> GatedEpilogue:
    """The macros for ``tiles``; ``factor`` is a power of two that the operands leave to the result.

    ``clamp`` cuts gates off above it and ups on both sides, before anything else.
    """
    import tilelang.ascend.language as T

    l0c_stages, half = tiles.l0c_stages, tiles.block_m // 2
    bound = 0.0 if clamp is None else clamp
    scale_columns = GATED // PAIR
    quantise = _QUANTISER.rows()
    hand_over, close_cube = accumulator_hand_over(tiles)

    @T.macro
    def allocate(state: Any, accumulator_ub: Any) -> None:
        result_ub = T.alloc_shared((half, WIDTH), "bfloat16")
        # Two bytes of room for each of WIDTH columns: the first half of it takes the quantised values.
        values = T.view(result_ub, (2, half, WIDTH), dtype="float8_e4m3fn")
        amax = T.alloc_shared((1, half, VECTOR_LANES), "float32")
        inverse = T.alloc_shared((1, half, VECTOR_LANES), "float32")
        scales = T.alloc_shared((1, scale_columns, padded(half, 16)), "uint16")
        weights_ub = T.alloc_shared((padded(half, 8),), "float32")
        state.keep(result_ub=result_ub, values=values, scales=scales, weights_ub=weights_ub)
        state.keep(amax=amax, inverse=inverse, accumulator_ub=accumulator_ub)
        for slot in T.serial(l0c_stages):
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", UB_EMPTY + slot)
        T.ascend_set_flag("MTE3_V", 0)
        T.ascend_set_flag("V_MTE2", 0)

    def open_half(accumulator_ub: Any) -> Any:
        state = Rings()
        allocate(state, accumulator_ub)
        state.keep(work=Work(state.amax, state.inverse, state.values, state.scales))
        return state

    @T.macro
    def scaled(value: Any) -> Any:
        return T.simd.vmuls(value, T.float32(factor)) if factor != 1.0 else value

    @T.macro
    def activation(gate: Any, up: Any) -> Any:
        if clamp is not None:
            gate = T.simd.vmins(gate, bound)
            up = T.simd.vmaxs(T.simd.vmins(up, bound), -bound)
        return T.simd.vmul(silu(gate), up)

    @T.macro
    def gated_rows(state: Any, slot: Any) -> None:
        for row in T.serial(T.uint16(half)):
            weight = T.simd.vld(state.weights_ub[T.cast(row, "int32")], dist="BRC_B32")
            for i in T.unroll(GATED // VECTOR_LANES, explicit=True):
                at = i * VECTOR_LANES
                gate = scaled(T.simd.vld(state.accumulator_ub[slot, T.cast(row, "int32"), at]))
                up = scaled(T.simd.vld(state.accumulator_ub[slot, T.cast(row, "int32"), GATED + at]))
                value = T.simd.vmul(activation(gate, up), weight)
                T.simd.vsts(state.accumulator_ub[slot, T.cast(row, "int32"), at], value)

    @T.macro
    def load_weights(state: Any, weights: Any, row: Any, count: Any) -> None:
        T.ascend_wait_flag("V_MTE2", 0)
        if count > 0:
            T.copy(weights[row : row + count], state.weights_ub[0:count])
        T.ascend_set_flag("MTE2_V", 0)
        T.ascend_wait_flag("MTE2_V", 0)

    def quantise_slot(state: Any, slot: Any) -> Any:
        return quantise(_InSlot(state.accumulator_ub, slot), state.work, 0, half)

    @T.macro
    def finish_gated(state: Any, turn: Any, place: Any, row: Any) -> None:
        count = T.alloc_var("int32")
        count = T.max(T.min(place.end - row, half), 0)
        load_weights(state, place.weights, row, count)
        T.ascend_wait_flag("MTE3_V", 0)
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_V", UB_FULL + turn % l0c_stages)
        with T.SimdVF():
            gated_rows(state, turn % l0c_stages)
            T.simd.mem_bar("VST_VLD")
            quantise_slot(state, turn % l0c_stages)
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", UB_EMPTY + turn % l0c_stages)
        T.ascend_set_flag("V_MTE2", 0)
        T.ascend_set_flag("V_MTE3", 0)
        T.ascend_wait_flag("V_MTE3", 0)
        if count > 0:
            T.copy(
                state.values[0, 0:count, 0:GATED],
                place.h[row : row + count, place.col : place.col + GATED],
            )
            pair = T.truncdiv(place.col, PAIR)
            T.copy(
                state.scales[0, :, 0:count],
                place.h_scales[pair : pair + scale_columns, row : row + count],
            )
        T.ascend_set_flag("MTE3_V", 0)

    @T.macro
    def finish_sums(state: Any, turn: Any, place: Any, row: Any) -> None:
        count = T.alloc_var("int32")
        count = T.max(T.min(place.end - row, half), 0)
        T.ascend_wait_flag("MTE3_V", 0)
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_V", UB_FULL + turn % l0c_stages)
        with T.SimdVF():
            for row_of_half in T.serial(T.uint16(half)):
                for i in T.unroll(WIDTH // VECTOR_LANES, explicit=True):
                    at = i * VECTOR_LANES
                    value = T.simd.vld(
                        state.accumulator_ub[turn % l0c_stages, T.cast(row_of_half, "int32"), at]
                    )
                    narrow = T.simd.vcvt(scaled(value), "bfloat16", sat=False, part=0)
                    T.simd.vsts(state.result_ub[T.cast(row_of_half, "int32"), at], narrow, dist="PK_B32")
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", UB_EMPTY + turn % l0c_stages)
        T.ascend_set_flag("V_MTE3", 0)
        T.ascend_wait_flag("V_MTE3", 0)
        if count > 0:
            T.copy(
                state.result_ub[0:count, 0:WIDTH],
                place.y[row : row + count, place.col : place.col + WIDTH],
            )
        T.ascend_set_flag("MTE3_V", 0)

    @T.macro
    def close() -> None:
        T.ascend_wait_flag("MTE3_V", 0)
        T.ascend_wait_flag("V_MTE2", 0)

    return GatedEpilogue(hand_over, close_cube, open_half, finish_gated, finish_sums, close)
