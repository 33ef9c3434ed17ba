"""Widened operand: B of e2m1 becomes e4m3 in L1, by the vector cores, for a product with an A of e4m3.

The cube takes operands of one width. Every e2m1 value times 2^-6 is an e4m3 value with the same bits at other
places (sign, two exponent bits as the low ones of four, the mantissa bit as the high one of three), so that
widening is shifts and masks and loses nothing; the result is multiplied by :data:`FACTOR` again.

Each vector core widens half of the rows of a tile. Slots of L1 pass between the cores with a flag each way.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.cube.cube_pipeline import CORE_PAIR, SECOND_VECTOR_CORE, Rings
from kaas.kernel_library.cube.gemm_tiles import GemmTiles

WIDENED_OPERAND_SOURCES = ("kaas.kernel_library.cube.widened_operand",)
"""For ``Family.sources`` of a family built on this module."""

FACTOR = 64.0
"""What a product with a widened operand lacks."""
STAGES = 2
UB_BYTES_PER_VALUE = STAGES * (0.25 + 0.5)
"""UB of one vector core for each element of a [block_n, block_k] tile of B."""

CHUNK_BYTES = 128
"""Bytes of pairs that one register takes: 256 values."""
BLOCK_BYTES = 32
CHUNK_COLUMNS = 2 * CHUNK_BYTES // BLOCK_BYTES
FIRST_EVENT = 2
"""The stages' flags within a vector core; the epilogue has the lower ones."""

# Between the cores, one per slot of L1 (four at most), beside those of the epilogue.
L1_FULL = 4
L1_EMPTY = 8


class WidenedOperand(msgspec.Struct, frozen=True):
    """B's ring in L1, [stages, block_n, block_k] e4m3, is seen by both sides.

    Cube side: ``open_cube()`` before the first tile, ``acquire(rings)`` and ``release(rings)`` around the
    cube steps of a K step. Vector side: ``open()``, then ``widen(state, b, b_l1, vector_core, col, k)`` for
    every K step of every tile, whose first column of D and first K are given, and ``close()``.
    """

    open_cube: Callable[[], Any]
    acquire: Callable[[Rings], Any]
    release: Callable[[Rings], Any]
    open: Callable[[], Any]
    widen: Callable[[Any, Any, Any, Any, Any, Any], Any]
    close: Callable[[], Any]


def widened_operand(tiles: GemmTiles) -> WidenedOperand:
    """The macros for ``tiles``, whose ``block_n`` is a multiple of 32."""
    import tilelang.ascend.language as T

    stages, rows, bk = tiles.l1_stages, tiles.block_n // 2, tiles.block_k
    columns = bk // BLOCK_BYTES
    # One block of room behind the rows of a column spreads the columns over the banks of UB.
    pitch = rows + 1

    @T.macro
    def open_cube() -> None:
        for slot in T.serial(stages):
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE1", L1_EMPTY + slot)
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE1", SECOND_VECTOR_CORE + L1_EMPTY + slot)

    @T.macro
    def acquire(rings: Any) -> None:
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE1", L1_FULL + rings.l1_slot())
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE1", SECOND_VECTOR_CORE + L1_FULL + rings.l1_slot())

    @T.macro
    def release(rings: Any) -> None:
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE1", L1_EMPTY + rings.l1_slot())
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE1", SECOND_VECTOR_CORE + L1_EMPTY + rings.l1_slot())

    @T.macro
    def allocate(state: Any) -> None:
        # A register takes a whole chunk, whatever is left of the last row.
        narrow_ub = T.alloc_shared((STAGES, rows + -(-2 * CHUNK_BYTES // bk), bk), "float4_e2m1fn")
        wide_ub = T.alloc_shared((STAGES, columns, pitch, BLOCK_BYTES), "uint8")
        turn = T.alloc_var("int32", init=0)
        state.keep(narrow_ub=narrow_ub, wide_ub=wide_ub, turn=turn.buffer)
        for stage in T.serial(STAGES):
            T.ascend_set_flag("V_MTE2", FIRST_EVENT + stage)
            T.ascend_set_flag("MTE3_V", FIRST_EVENT + stage)

    def open_vector() -> Any:
        state = Rings()
        allocate(state)
        return state

    @T.macro
    def widened(pairs: Any) -> Any:
        """256 values as e4m3 bytes of 128 bytes of pairs, which lie in 16 bits each."""

        low = T.simd.vand(pairs, T.simd.vdup(T.uint16(0x000F), "uint16"))
        high = T.simd.vand(T.simd.vshls(pairs, 4), T.simd.vdup(T.uint16(0x0F00), "uint16"))
        both = T.simd.vor(low, high)
        signs = T.simd.vshls(T.simd.vand(both, T.simd.vdup(T.uint16(0x0808), "uint16")), 4)
        numbers = T.simd.vshls(T.simd.vand(both, T.simd.vdup(T.uint16(0x0707), "uint16")), 2)
        return T.reinterpret("uint8x256", T.simd.vor(signs, numbers))

    @T.macro
    def widen_chunk(narrow: Any, wide: Any, stage: Any, row: Any, column: Any, blocks: int) -> None:
        """``blocks`` columns of a row, from ``column`` on."""
        at = row * (bk // 2) + column * (BLOCK_BYTES // 2)
        pairs = T.reinterpret("uint16x128", T.simd.vld(narrow[stage, at], dist="UNPK_B8"))
        lanes = T.simd.update_mask(T.uint32(blocks * BLOCK_BYTES), 8)
        T.simd.vsstb(widened(pairs), wide[stage, (column * pitch + row) * BLOCK_BYTES], pitch << 16, lanes)

    @T.macro
    def widen_rows(narrow: Any, wide: Any, stage: Any) -> None:
        """[rows, bk/2] pairs to columns of 32 bytes, one column of all rows behind the other."""
        with T.SimdVF():
            for row in T.serial(T.uint16(rows)):
                if columns >= CHUNK_COLUMNS:
                    for chunk in T.serial(T.uint16(columns // CHUNK_COLUMNS)):
                        first = T.cast(chunk, "int32") * CHUNK_COLUMNS
                        widen_chunk(narrow, wide, stage, T.cast(row, "int32"), first, CHUNK_COLUMNS)
                if columns % CHUNK_COLUMNS:
                    first = columns // CHUNK_COLUMNS * CHUNK_COLUMNS
                    widen_chunk(narrow, wide, stage, T.cast(row, "int32"), first, columns % CHUNK_COLUMNS)

    @T.macro
    def widen(state: Any, b: Any, b_l1: Any, vector_core: Any, col: Any, k: Any) -> None:
        narrow = T.view(state.narrow_ub, (STAGES, state.narrow_ub.shape[1] * bk // 2), dtype="uint8")
        wide = T.view(state.wide_ub, (STAGES, columns * pitch * BLOCK_BYTES))
        first = col + vector_core * rows
        T.ascend_wait_flag("V_MTE2", FIRST_EVENT + state.turn[0] % STAGES)
        T.copy(b[first : first + rows, k : k + bk], state.narrow_ub[state.turn[0] % STAGES, 0:rows, :])
        T.ascend_set_flag("MTE2_V", FIRST_EVENT + state.turn[0] % STAGES)
        T.ascend_wait_flag("MTE2_V", FIRST_EVENT + state.turn[0] % STAGES)
        T.ascend_wait_flag("MTE3_V", FIRST_EVENT + state.turn[0] % STAGES)
        widen_rows(narrow, wide, state.turn[0] % STAGES)
        T.ascend_set_flag("V_MTE2", FIRST_EVENT + state.turn[0] % STAGES)
        T.ascend_set_flag("V_MTE3", FIRST_EVENT + state.turn[0] % STAGES)
        T.ascend_wait_flag("V_MTE3", FIRST_EVENT + state.turn[0] % STAGES)
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE3", L1_EMPTY + state.turn[0] % stages)
        # It counts columns of 32 bytes by the 2-byte elements that would fill them.
        T.ascend_nd2nz_post_copy(
            b_l1[state.turn[0] % stages, vector_core * rows, 0],
            state.wide_ub[state.turn[0] % STAGES, 0, 0, 0],
            rows,
            columns * BLOCK_BYTES // 2,
            2 * rows,
            "bfloat16_t",
        )
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE3", L1_FULL + state.turn[0] % stages)
        T.ascend_set_flag("MTE3_V", FIRST_EVENT + state.turn[0] % STAGES)
        state.turn[0] += 1

    @T.macro
    def close() -> None:
        for stage in T.serial(STAGES):
            T.ascend_wait_flag("V_MTE2", FIRST_EVENT + stage)
            T.ascend_wait_flag("MTE3_V", FIRST_EVENT + stage)
        for slot in T.serial(stages):
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE3", L1_EMPTY + slot)

    return WidenedOperand(open_cube, acquire, release, open_vector, widen, close)
