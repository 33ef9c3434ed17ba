"""Quantised epilogue: an accumulator leaves through the vector cores as e4m3 with a scale for 32 columns.

The rule is that of :mod:`kaas.kernel_library.vector.quantise` with scales rounded up to powers of two, on the
fp32 value: no rounding comes before that to e4m3. Scales are written as pairs [ceil(N/64), M], the form in
which the next product takes them.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kaas.kernel_library.cube.cube_pipeline import (
    CORE_PAIR,
    UB_EMPTY,
    UB_FULL,
    VECTOR_LANES,
    Rings,
    VectorEpilogue,
    accumulator_hand_over,
)
from kaas.kernel_library.cube.gemm_fields import QUANTISED_PAIR as PAIR
from kaas.kernel_library.cube.gemm_tiles import GemmTiles

if TYPE_CHECKING:
    from kaas.kernel_library.vector.quantise import RowQuantiser

# Spelt out, and the quantiser imported late: a rank that asks for a plain product has no use for it.
QUANTISED_EPILOGUE_SOURCES = (
    "kaas.kernel_library.vector.block_values",
    "kaas.kernel_library.vector.quantise",
    "kaas.kernel_library.vector.row_plan",
    "kaas.kernel_library.cube.quantised_epilogue",
)
"""For ``Family.sources`` of a family built on this module."""

WIDEST_BLOCK = 256
BLOCK_WORDS = 16
"""Pairs in 32 bytes, which is the least that a register load reads."""


def quantiser_of(block_n: int) -> RowQuantiser:
    """The quantiser of a half tile's rows."""
    from kaas.kernel_library.vector.quantise import RowQuantiser

    return RowQuantiser(
        hidden=block_n, source="fp32", fmt="e4m3", round_sf=True, scales="e8m0", col_major=True
    )


def row_bytes(block_n: int) -> int:
    """UB bytes that a row of a half tile takes beside its accumulators."""
    quantiser = quantiser_of(block_n)
    return quantiser.row_bytes + 4 * quantiser.pitch


def widest_row_bytes() -> int:
    """The same for the widest tile there is."""
    return row_bytes(WIDEST_BLOCK)


def quantised_epilogue(tiles: GemmTiles, columns: Any, *, factor: float, with_alpha: bool) -> VectorEpilogue:
    """(alpha *) factor * accumulator as e4m3; ``finish`` takes (d, sfd). ``columns`` is D's extent N."""
    import tilelang.ascend.language as T

    l0c_stages, bn, half = tiles.l0c_stages, tiles.block_n, tiles.block_m // 2
    quantiser = quantiser_of(bn)
    quantise, scale_columns = quantiser.rows(), quantiser.scale_columns
    may_end_in_half_pair = not isinstance(columns, int) or columns % PAIR != 0
    hand_over, close_cube = accumulator_hand_over(tiles)

    @T.macro
    def allocate(state: Any, accumulator_ub: Any) -> None:
        scaled_ub = T.alloc_shared((1, half, quantiser.pitch), "float32")
        work = quantiser.allocate(1, half)
        state.keep(scaled_ub=scaled_ub, work=work, accumulator_ub=accumulator_ub)
        for slot in T.serial(l0c_stages):
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", UB_EMPTY + slot)
        T.ascend_set_flag("MTE3_V", 0)

    def open_half(accumulator_ub: Any) -> Any:
        state = Rings()
        allocate(state, accumulator_ub)
        return state

    @T.macro
    def scaled_rows(state: Any, turn: Any, alpha: Any) -> None:
        """The accumulator at the quantiser's pitch, times what multiplies it."""
        for row in T.serial(T.uint16(half)):
            for vector in T.serial(T.uint16(bn // VECTOR_LANES)):
                at = T.cast(vector, "int32") * VECTOR_LANES
                value = T.simd.vld(state.accumulator_ub[turn % l0c_stages, T.cast(row, "int32"), at])
                if factor != 1.0:
                    value = T.simd.vmuls(value, T.float32(factor))
                if with_alpha:
                    value = T.simd.vmuls(value, alpha)
                T.simd.vsts(state.scaled_ub[0, T.cast(row, "int32"), at], value)

    @T.macro
    def drop_half_pair(state: Any, left: Any) -> None:
        """The pair at D's last 32 columns has one scale; its high byte becomes 0."""
        for column in T.serial(T.uint16(scale_columns)):
            pair = T.cast(column, "int32")
            mask = T.if_then_else(pair * PAIR + PAIR > left, T.uint16(0x00FF), T.uint16(0xFFFF))
            for block in T.serial(T.uint16(-(-half // BLOCK_WORDS))):
                at = T.cast(block, "int32") * BLOCK_WORDS
                pairs = T.simd.vld(state.work.scales[0, pair, at], dist="BLK")
                kept = T.simd.vand(pairs, T.simd.vdup(mask, "uint16"))
                one_block = T.simd.pset(16, "PAT_VL16")
                T.simd.vsts(
                    state.work.scales[0, pair, at], kept, one_block, dist="NORM_B16", extent=BLOCK_WORDS
                )

    @T.macro
    def finish(state: Any, turn: Any, d: Any, row: Any, col: Any, alpha: Any) -> None:
        T.ascend_wait_flag("MTE3_V", 0)
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_V", UB_FULL + turn % l0c_stages)
        with T.SimdVF():
            scaled_rows(state, turn, alpha)
            T.simd.mem_bar("VST_VLD")
            quantise(state.scaled_ub, state.work, 0, half)
            if may_end_in_half_pair:
                T.simd.mem_bar("VST_VLD")
                drop_half_pair(state, columns - col)
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", UB_EMPTY + turn % l0c_stages)
        T.ascend_set_flag("V_MTE3", 0)
        T.ascend_wait_flag("V_MTE3", 0)
        T.copy(state.work.values[0, :, 0:bn], d[0][row : row + half, col : col + bn])
        T.copy(
            state.work.scales[0, :, 0:half],
            d[1][T.truncdiv(col, PAIR) : T.truncdiv(col, PAIR) + scale_columns, row : row + half],
        )
        T.ascend_set_flag("MTE3_V", 0)

    @T.macro
    def close() -> None:
        T.ascend_wait_flag("MTE3_V", 0)

    return VectorEpilogue(hand_over, close_cube, open_half, finish, close)
