"""Gathered keys: records of the tokens that an index list names, as blocks of bf16 keys in the cube's L1.

    cache: global memory --MTE2, a transfer per token--> UB --V: bf16, fractal order--> UB --MTE3--> L1

Each vector core gathers half of a block, a piece of some tokens at a time, while the other pipes work on the
block before. A token that is none (its index negative or too large, or behind the end of its list) is not
fetched; its key is zero and a mask keeps its score out.

Slots of L1 pass between the cores with two counting flags: both sides go through the ring in the same order.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kaas.kernel_library.attention.attention_tiles import CHUNK, WEIGHT_SLOTS, AttentionTiles
from kaas.kernel_library.attention.kv_records import (
    ELEMENTS,
    RECORD_BYTES,
    RecordFormat,
    hold_records,
    record_reader,
)
from kaas.kernel_library.attention.row_views import FlatRows
from kaas.kernel_library.attention.sparse_tiles import PIECE, STAGES
from kaas.kernel_library.cube.cube_pipeline import CORE_PAIR, SECOND_VECTOR_CORE, VECTOR_LANES, Rings

BLOCK_ELEMENTS = 16
"""bf16 values in 32 bytes: a column of L1."""
ALL_BITS = 0xFFFFFFFF

# Counting flags between a cube core and its two vector cores, behind those of the accumulators and weights.
KEYS_FULL = 12
KEYS_EMPTY = 13

# Within a vector core: one per stage, and one per slot of indices, behind those of the weights.
FIRST_STAGE_EVENT = 3
FIRST_INDEX_EVENT = 5


class KeySet(msgspec.Struct, frozen=True, kw_only=True):
    """One cache and the index lists into it.

    ``cache``, ``indices`` and ``lengths`` are names of parameters: the cache ends with a record of ``fmt``,
    indices are [..., topk] with a row per token of queries, lengths (``None``: all are ``topk``) say how much
    of a row counts. ``records`` is how many records the cache has, as an expression.
    """

    fmt: RecordFormat
    topk: int
    cache: str
    indices: str
    lengths: str | None
    records: Any


class GatheredKeys(msgspec.Struct, frozen=True):
    """Macros of both sides.

    Cube: ``open_cube()``, ``await_keys()`` on MTE2 and ``release()`` on MTE1. Vector: ``open(state, k_l1)``,
    ``ahead`` and ``sees`` as :func:`attention_softmax` takes them, ``close()``.

    A place has ``call``, ``token``, the row of all index lists, and per set of keys ``blocks`` and
    ``lengths``, how many blocks it has and how many indices of the row count.
    """

    open_cube: Callable[[], Any]
    await_keys: Callable[[], Any]
    release: Callable[[], Any]
    open: Callable[[Rings, Any], Any]
    ahead: Callable[[Rings, Any, Any, Any], Any]
    sees: Callable[[Rings, Any, int], Any]
    close: Callable[[], Any]


def gathered_keys(tiles: AttentionTiles, sets: Sequence[KeySet], list_rows: Any) -> GatheredKeys:
    """The macros for ``tiles``, whose keys are those of ``sets`` one after another, each from a new block on.

    ``list_rows`` is the number of rows of every index list.
    """
    import tilelang.ascend.language as T

    keys, width, slots = tiles.keys, tiles.d_qk, tiles.key_slots
    own = keys // 2
    # One block of room behind the rows of a column spreads the columns over the banks of UB.
    pitch = PIECE + 1

    @T.macro
    def open_cube() -> None:
        for _ in T.serial(slots):
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE1", KEYS_EMPTY)
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE1", SECOND_VECTOR_CORE + KEYS_EMPTY)

    @T.macro
    def await_keys() -> None:
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE2", KEYS_FULL)
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE2", SECOND_VECTOR_CORE + KEYS_FULL)

    @T.macro
    def release() -> None:
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE1", KEYS_EMPTY)
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE1", SECOND_VECTOR_CORE + KEYS_EMPTY)

    @T.macro
    def open_vector(state: Any, k_l1: Any) -> None:
        index_ub = T.alloc_shared((WEIGHT_SLOTS, CHUNK), "int32")
        words = T.alloc_shared((WEIGHT_SLOTS, CHUNK), "uint32")
        columns_ub = T.alloc_shared((STAGES, width // BLOCK_ELEMENTS, pitch, BLOCK_ELEMENTS), "bfloat16")
        piece_turn = T.alloc_var("int32", init=0)
        key_turn = T.alloc_var("int32", init=0)
        state.keep(**hold_records(STAGES, PIECE, width, [one.fmt for one in sets]))
        state.keep(index_ub=index_ub, words=words, columns_ub=columns_ub, k_l1=k_l1)
        state.keep(columns=T.view(columns_ub, (STAGES, width * pitch), dtype="uint16"))
        state.keep(piece_turn=piece_turn.buffer, key_turn=key_turn.buffer)
        for stage in T.serial(STAGES):
            T.ascend_set_flag("V_MTE2", FIRST_STAGE_EVENT + stage)
            T.ascend_set_flag("MTE3_V", FIRST_STAGE_EVENT + stage)
        for ring in T.serial(WEIGHT_SLOTS):
            T.ascend_set_flag("V_MTE2", FIRST_INDEX_EVENT + ring)
            T.ascend_set_flag("S_MTE2", FIRST_INDEX_EVENT + ring)

    def fetcher(one: KeySet) -> Any:
        @T.macro
        def fetch(state: Any, place: Any, ring: Any, first: Any) -> None:
            """The indices of a block from ``first`` on."""
            rows = FlatRows(getattr(place.call, one.indices), list_rows)
            count = T.min(one.topk - first, keys)
            T.ascend_wait_flag("V_MTE2", FIRST_INDEX_EVENT + ring)
            T.ascend_wait_flag("S_MTE2", FIRST_INDEX_EVENT + ring)
            if one.topk % keys == 0:
                T.copy(rows[place.token, first : first + keys], state.index_ub[ring, 0:keys])
            else:
                T.copy(rows[place.token, first : first + count], state.index_ub[ring, 0:count])
            T.ascend_set_flag("MTE2_S", FIRST_INDEX_EVENT + ring)
            T.ascend_set_flag("MTE2_V", FIRST_INDEX_EVENT + ring)

        return fetch

    def masker(one: KeySet) -> Any:
        @T.macro
        def mask(state: Any, ring: Any, known: Any) -> None:
            """Words of ones for the keys of a block that count, of zeros for the others."""
            with T.SimdVF():
                for half in T.unroll(keys // VECTOR_LANES, explicit=True):
                    column = half * VECTOR_LANES
                    index = T.simd.vld(state.index_ub[ring, column])
                    none = T.simd.vdup(T.uint32(0), "uint32")
                    word = T.simd.vdup(T.uint32(ALL_BITS), "uint32")
                    word = T.simd.vsel(word, none, T.simd.vcmps(index, T.int32(0), op="ge"))
                    word = T.simd.vsel(word, none, T.simd.vcmps(index, one.records, op="lt"))
                    place = T.simd.vci(T.int32(column), "int32")
                    word = T.simd.vsel(word, none, T.simd.vcmps(place, known, op="lt"))
                    T.simd.vsts(state.words[ring, column], word)

        return mask

    def loader(one: KeySet) -> Any:
        stored = width if one.fmt == "bf16" else RECORD_BYTES[one.fmt]

        @T.macro
        def load(state: Any, place: Any, ring: Any, stage: Any, at: Any, known: Any) -> None:
            cache = FlatRows(getattr(place.call, one.cache), one.records)
            rows = T.alloc_var("int32")
            index = T.alloc_var("int32")
            rows = T.max(T.min(known - at, PIECE), 0)
            for row in T.serial(rows):
                index = state.index_ub[ring, at + row]
                if T.And(index >= 0, index < one.records):
                    # Stated for the copy, which would check it all again.
                    T.assume(stage < STAGES)
                    T.assume(row < PIECE)
                    T.copy(cache[index, 0:stored], state.raw[stage, row, 0:stored])

        return load

    @T.macro
    def put(state: Any, stage: Any, row: Any, column: Any, value: Any, word: Any, blocks: int) -> None:
        """``blocks`` columns of 16 values of a row; zeros where ``word`` is."""
        lanes = T.simd.update_mask(T.uint32(blocks * BLOCK_ELEMENTS), 16)
        T.simd.vsstb(
            T.simd.vand(value, word),
            state.columns[stage, (column * pitch + row) * BLOCK_ELEMENTS],
            pitch << 16,
            lanes,
        )

    def widener(fmt: RecordFormat) -> Any:
        reader = record_reader(fmt)
        span = ELEMENTS * reader.registers
        columns = ELEMENTS // BLOCK_ELEMENTS

        @T.macro
        def widen(state: Any, ring: Any, stage: Any, at: Any) -> None:
            """A piece of records to columns of 32 bytes, one column of all rows behind the other."""
            with T.SimdVF():
                if reader.decode is not None:
                    reader.decode(state, stage, PIECE)
                    T.simd.mem_bar("VST_VLD")
                for row_16 in T.serial(T.uint16(PIECE)):
                    row = T.cast(row_16, "int32")
                    word = T.reinterpret(
                        "uint16x128", T.simd.vld(state.words[ring, at + row], dist="BRC_B32")
                    )
                    for step in T.unroll(width // span, explicit=True):
                        values = reader.read(state, stage, row, step)
                        put(state, stage, row, step * (span // BLOCK_ELEMENTS), values[0], word, columns)
                        if reader.registers == 2:
                            second = step * (span // BLOCK_ELEMENTS) + columns
                            put(state, stage, row, second, values[1], word, columns)
                    if width % span:
                        values = reader.read(state, stage, row, width // span)
                        rest = width % span // BLOCK_ELEMENTS
                        put(state, stage, row, width // span * columns, values[0], word, rest)

        return widen

    def filler(one: KeySet) -> Any:
        mask, load, widen = masker(one), loader(one), widener(one.fmt)

        @T.macro
        def fill(state: Any, place: Any, ring: Any, first: Any, length: Any) -> None:
            """The keys of a block from ``first`` on, of a list of which ``length`` count."""
            known = T.alloc_var("int32")
            known = T.min(length - first, keys)
            T.ascend_wait_flag("MTE2_V", FIRST_INDEX_EVENT + ring)
            mask(state, ring, known)
            T.ascend_set_flag("V_MTE2", FIRST_INDEX_EVENT + ring)
            T.ascend_wait_flag("MTE2_S", FIRST_INDEX_EVENT + ring)
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE3", KEYS_EMPTY)
            for piece in T.serial(own // PIECE):
                stage = state.piece_turn[0] % STAGES
                at = state.vector_core * own + piece * PIECE
                T.ascend_wait_flag("V_MTE2", FIRST_STAGE_EVENT + stage)
                load(state, place, ring, stage, at, known)
                T.ascend_set_flag("MTE2_V", FIRST_STAGE_EVENT + stage)
                T.ascend_wait_flag("MTE2_V", FIRST_STAGE_EVENT + stage)
                T.ascend_wait_flag("MTE3_V", FIRST_STAGE_EVENT + stage)
                widen(state, ring, stage, at)
                T.ascend_set_flag("V_MTE2", FIRST_STAGE_EVENT + stage)
                T.ascend_set_flag("V_MTE3", FIRST_STAGE_EVENT + stage)
                T.ascend_wait_flag("V_MTE3", FIRST_STAGE_EVENT + stage)
                T.ascend_nd2nz_post_copy(
                    state.k_l1[state.key_turn[0] % slots, at, 0],
                    state.columns_ub[stage, 0, 0, 0],
                    PIECE,
                    width,
                    keys,
                    "bfloat16_t",
                )
                T.ascend_set_flag("MTE3_V", FIRST_STAGE_EVENT + stage)
                state.piece_turn[0] += 1
            T.ascend_set_flag("S_MTE2", FIRST_INDEX_EVENT + ring)
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE3", KEYS_FULL)
            state.key_turn[0] += 1

        return fill

    fetch_of = [fetcher(one) for one in sets]
    fill_of = [filler(one) for one in sets]

    def ring_of(state: Any, block: Any) -> Any:
        return (state.block_turn[0] + block) % WEIGHT_SLOTS

    @T.macro
    def fetch_block(state: Any, place: Any, block: Any) -> None:
        if len(sets) == 1:
            fetch_of[0](state, place, ring_of(state, block), block * keys)
        else:
            if block < place.blocks[0]:
                fetch_of[0](state, place, ring_of(state, block), block * keys)
            else:
                fetch_of[1](state, place, ring_of(state, block), (block - place.blocks[0]) * keys)

    @T.macro
    def fill_block(state: Any, place: Any, block: Any) -> None:
        if len(sets) == 1:
            fill_of[0](state, place, ring_of(state, block), block * keys, place.lengths[0])
        else:
            if block < place.blocks[0]:
                fill_of[0](state, place, ring_of(state, block), block * keys, place.lengths[0])
            else:
                first = (block - place.blocks[0]) * keys
                fill_of[1](state, place, ring_of(state, block), first, place.lengths[1])

    @T.macro
    def ahead(state: Any, place: Any, step: Any, blocks: Any) -> None:
        fills = T.alloc_var("int32")
        block = T.alloc_var("int32")
        # The first block of a tile has nothing to hide behind; every later one comes a block before its turn.
        fills = T.if_then_else(step == 0, 2, 1)
        if step == 0:
            fetch_block(state, place, 0)
        for turn in T.serial(fills):
            block = T.if_then_else(step == 0, turn, step + 1)
            if block < blocks:
                if block + 1 < blocks:
                    fetch_block(state, place, block + 1)
                fill_block(state, place, block)

    @T.macro
    def sees(state: Any, ring: Any, column: int) -> Any:
        return T.simd.vcmps(T.simd.vld(state.words[ring, column]), T.uint32(0), op="ne")

    @T.macro
    def close() -> None:
        for stage in T.serial(STAGES):
            T.ascend_wait_flag("V_MTE2", FIRST_STAGE_EVENT + stage)
            T.ascend_wait_flag("MTE3_V", FIRST_STAGE_EVENT + stage)
        for ring in T.serial(WEIGHT_SLOTS):
            T.ascend_wait_flag("V_MTE2", FIRST_INDEX_EVENT + ring)
            T.ascend_wait_flag("S_MTE2", FIRST_INDEX_EVENT + ring)
        for _ in T.serial(slots):
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE3", KEYS_EMPTY)

    return GatheredKeys(open_cube, await_keys, release, open_vector, ahead, sees, close)
