"""Indexer scores: relu(q . k) of all heads, weighted and added up, key by key; both sides of a core.

    keys --MTE2--> L1 ring --MTE1--> L0B (2 slots) --M--> L0C (4 slots) --FIX--> UB of one vector core
    accumulators --V--> weighted sums of heads as bf16 (2 slots) --MTE3--> rows of the result

The queries of a block stay in L0A while its keys pass, a step of keys at a time. Steps go to the two vector
cores in turn, whole accumulators, so that even a single query keeps both of them busy. A tile of queries is
skipped in steps that none of them looks at. Both sides find out on their own which those are, from the same
numbers in global memory.

A row of the result begins with its query's first key. Sums lie in UB by the step's keys, so those of a query
that begins inside a step are moved down in UB before they are stored: stores start at whole blocks there.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.attention.indexer_fields import (
    BLOCK_TILES,
    FILL_COLUMNS,
    FRACTAL,
    INDEXER_FIELDS_SOURCES,
    KEY_SLOTS,
    L0B_SLOTS,
    L0C_SLOTS,
    LINE_SLOTS,
    QUERY_SLOTS,
    STEP_KEYS,
    TILE_ROWS,
    UB_SLOTS,
    IndexerTiles,
)
from kaas.kernel_library.cube.cube_pipeline import CORE_PAIR, SECOND_VECTOR_CORE, VECTOR_LANES, Rings
from kaas.kernel_library.entry import looked_at

INDEXER_SCORES_SOURCES = (*INDEXER_FIELDS_SOURCES, "kaas.kernel_library.attention.indexer_scores")
"""For ``Family.sources`` of a family built on this module."""

TILELANG_DTYPES = {"e4m3": "float8_e4m3fn", "e2m1": "float4_e2m1fn"}

# Between the cores, one per accumulator slot of a vector core.
UB_EMPTY = 0
UB_FULL = 2

# Events on the cube core: slots of keys come first on each pair of pipes.
QUERIES_IN_L1 = KEY_SLOTS
QUERIES_IN_L0 = L0B_SLOTS
# Events on a vector core behind those of the slots of lines.
WEIGHTS = LINE_SLOTS
FILL = LINE_SLOTS + 1

SUMS = STEP_KEYS // VECTOR_LANES
NARROW_LANES = 2 * VECTOR_LANES
MINUS_INFINITY = 0xFF80
"""As bf16 bits."""


class Block(msgspec.Struct, frozen=True):
    """Queries ``first`` .. ``first + count`` and the keys ``begin`` .. ``end`` that some of them look at.

    All are variables. ``steps`` is the number of steps from ``begin`` on that are this core's; ``cleans``,
    0 or 1, whether it is also this core that fills what its queries' windows leave of the result.
    ``source`` is the family's own, for its key copies.
    """

    first: Any
    count: Any
    begin: Any
    end: Any
    steps: Any
    cleans: Any
    source: Any = None


def indexer_scores(
    tiles: IndexerTiles,
    cores: int,
    *,
    tokens: Any,
    columns: Any,
    clean: bool,
    walk: Callable[[Any, Any, Any], Any],
    window: Callable[[Any, Any], Any],
    load_keys: Callable[[Rings, Any, Any, Any], Any],
) -> Any:
    """A macro ``block(call)``: ``tokens`` queries and a result of ``columns`` columns on ``cores`` cores.

    ``walk(call, core, visit)`` calls ``visit(block)`` for a core's blocks, on both sides alike.
    ``window(call, query)`` returns the first key of a query and the one after its last, none where they are
    equal. ``load_keys(rings, call, block, key)`` issues the copies of a step from key ``key`` on on MTE2: to
    slot ``key_slot(rings)`` of ``rings.k_l1`` [KEY_SLOTS, STEP_KEYS, head_dim] and of ``rings.k_scales_l1``
    [KEY_SLOTS, STEP_KEYS, pairs]; keys behind the block's end may become anything. ``clean`` fills
    a row behind its window with minus infinity.
    """
    import tilelang.ascend.language as T

    heads, head_dim, pairs, per_tile = tiles.heads, tiles.head_dim, tiles.pairs, tiles.queries
    rows, dtype = tiles.rows, TILELANG_DTYPES[tiles.dtype]
    all_rows = tokens * heads

    def tile_count(block: Block) -> Any:
        return T.truncdiv(block.count + per_tile - 1, per_tile)

    @T.macro
    def look_at_windows(call: Any, block: Any, low: Any, high: Any) -> None:
        """The first key and the one after the last that each tile's queries look at; none: high = 0."""
        lowest = T.alloc_var("int32")
        highest = T.alloc_var("int32")
        held = T.alloc_var("int32")
        tiles_here = T.alloc_var("int32")
        tiles_here = tile_count(block)
        for tile in T.serial(tiles_here):
            lowest = 2**31 - 1
            highest = 0
            held = T.min(per_tile, block.count - tile * per_tile)
            for query in T.serial(held):
                start, end = window(call, block.first + tile * per_tile + query)
                if start < end:
                    lowest = T.min(lowest, start)
                    highest = T.max(highest, end)
            low[tile] = lowest
            high[tile] = highest

    def is_active(low: Any, high: Any, tile: Any, key: Any) -> Any:
        return T.And(low[tile] < key + STEP_KEYS, high[tile] > key)

    @T.macro
    def load_queries(rings: Any, call: Any, block: Any) -> None:
        row = T.alloc_var("int32")
        tiles_here = T.alloc_var("int32")
        tiles_here = tile_count(block)
        T.ascend_wait_flag("MTE1_MTE2", QUERIES_IN_L1 + rings.blocks[0] % QUERY_SLOTS)
        for tile in T.serial(tiles_here):
            row = (block.first + tile * per_tile) * heads
            T.copy(
                looked_at(call.q, (all_rows, head_dim))[row : row + rows, 0:head_dim],
                rings.q_l1[rings.blocks[0] % QUERY_SLOTS, tile, :, :],
            )
            T.copy(
                call.q_scales[0:pairs, row : row + rows],
                rings.q_scales_l1[rings.blocks[0] % QUERY_SLOTS, tile, :, :],
                transpose=True,
            )
        T.ascend_set_flag("MTE2_MTE1", QUERIES_IN_L1 + rings.blocks[0] % QUERY_SLOTS)
        T.ascend_wait_flag("MTE2_MTE1", QUERIES_IN_L1 + rings.blocks[0] % QUERY_SLOTS)
        T.ascend_wait_flag("M_MTE1", QUERIES_IN_L0)
        for tile in T.serial(tiles_here):
            T.copy(
                rings.q_l1[rings.blocks[0] % QUERY_SLOTS, tile, :, :],
                rings.q_l0[tile, :, :],
            )
            T.copy(
                rings.q_scales_l1[rings.blocks[0] % QUERY_SLOTS, tile, :, :],
                rings.q_scales_l0[tile, :, :],
            )
        T.ascend_set_flag("MTE1_MTE2", QUERIES_IN_L1 + rings.blocks[0] % QUERY_SLOTS)
        # The cube waits for keys that MTE1 copies behind these.
        rings.blocks[0] += 1

    @T.macro
    def bring_keys(rings: Any, call: Any, block: Any, key: Any) -> None:
        T.ascend_wait_flag("MTE1_MTE2", rings.turn[0] % KEY_SLOTS)
        load_keys(rings, call, block, key)
        T.ascend_set_flag("MTE2_MTE1", rings.turn[0] % KEY_SLOTS)
        T.ascend_wait_flag("MTE2_MTE1", rings.turn[0] % KEY_SLOTS)
        T.ascend_wait_flag("M_MTE1", rings.turn[0] % L0B_SLOTS)
        T.copy(rings.k_l1[rings.turn[0] % KEY_SLOTS, :, :], rings.k_l0[rings.turn[0] % L0B_SLOTS, :, :])
        T.copy(
            rings.k_scales_l1[rings.turn[0] % KEY_SLOTS, :, :],
            rings.k_scales_l0[rings.turn[0] % L0B_SLOTS, :, :],
        )
        T.ascend_set_flag("MTE1_MTE2", rings.turn[0] % KEY_SLOTS)
        T.ascend_set_flag("MTE1_M", rings.turn[0] % L0B_SLOTS)
        T.ascend_wait_flag("MTE1_M", rings.turn[0] % L0B_SLOTS)

    @T.macro
    def multiply(rings: Any, accumulators: Any, tile: Any, taker: Any) -> None:
        """One tile's products with the keys in L0B, handed to vector core ``taker``."""
        flag = T.alloc_var("int32")
        flag = taker * SECOND_VECTOR_CORE + rings.given[taker] % UB_SLOTS
        T.ascend_wait_flag("FIX_M", rings.products[0] % L0C_SLOTS)
        T.gemm_blockscaled(
            rings.q_l0[tile, :, :],
            rings.k_l0[rings.turn[0] % L0B_SLOTS, :, :],
            rings.l0c[rings.products[0] % L0C_SLOTS, :, :],
            rings.q_scales_l0[tile, :, :],
            rings.k_scales_l0[rings.turn[0] % L0B_SLOTS, :, :],
            transpose_B=True,
            clear_accum=True,
        )
        T.ascend_set_flag("M_FIX", rings.products[0] % L0C_SLOTS)
        T.ascend_wait_flag("M_FIX", rings.products[0] % L0C_SLOTS)
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", UB_EMPTY + flag)
        T.copy(
            rings.l0c[rings.products[0] % L0C_SLOTS, :, :],
            accumulators[rings.given[taker] % UB_SLOTS, :, :],
            sub_blockid=taker,
        )
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_FIX", UB_FULL + flag)
        T.ascend_set_flag("FIX_M", rings.products[0] % L0C_SLOTS)
        rings.products[0] += 1
        rings.given[taker] += 1

    @T.macro
    def open_cube(rings: Any) -> None:
        q_l1 = T.alloc_l1((QUERY_SLOTS, BLOCK_TILES, rows, head_dim), dtype)
        k_l1 = T.alloc_l1((KEY_SLOTS, STEP_KEYS, head_dim), dtype)
        q_scales_l1 = T.alloc_l1((QUERY_SLOTS, BLOCK_TILES, rows, pairs), "uint16")
        k_scales_l1 = T.alloc_l1((KEY_SLOTS, STEP_KEYS, pairs), "uint16")
        q_l0 = T.alloc_l0a((BLOCK_TILES, rows, head_dim), dtype)
        k_l0 = T.alloc_l0b((L0B_SLOTS, STEP_KEYS, head_dim), dtype)
        q_scales_l0 = T.alloc_l0a_sf(q_l0)
        k_scales_l0 = T.alloc_l0b_sf(k_l0)
        l0c = T.alloc_l0c((L0C_SLOTS, rows, STEP_KEYS), "float32")
        blocks = T.alloc_var("int32", init=0)
        turn = T.alloc_var("int32", init=0)
        products = T.alloc_var("int32", init=0)
        steps_done = T.alloc_var("int32", init=0)
        given = T.alloc_local((2,), "int32")
        low = T.alloc_local((BLOCK_TILES,), "int32")
        high = T.alloc_local((BLOCK_TILES,), "int32")
        given[0] = 0
        given[1] = 0
        rings.keep(q_l1=q_l1, k_l1=k_l1, q_scales_l1=q_scales_l1, k_scales_l1=k_scales_l1, l0c=l0c)
        rings.keep(q_l0=q_l0, k_l0=k_l0, q_scales_l0=q_scales_l0, k_scales_l0=k_scales_l0)
        rings.keep(blocks=blocks.buffer, turn=turn.buffer, products=products.buffer)
        rings.keep(steps_done=steps_done.buffer, given=given, low=low, high=high)
        for slot in T.serial(KEY_SLOTS + QUERY_SLOTS):
            T.ascend_set_flag("MTE1_MTE2", slot)
        for slot in T.serial(L0B_SLOTS + 1):
            T.ascend_set_flag("M_MTE1", slot)
        for slot in T.serial(L0C_SLOTS):
            T.ascend_set_flag("FIX_M", slot)

    @T.macro
    def close_cube() -> None:
        for slot in T.serial(KEY_SLOTS + QUERY_SLOTS):
            T.ascend_wait_flag("MTE1_MTE2", slot)
        for slot in T.serial(L0B_SLOTS + 1):
            T.ascend_wait_flag("M_MTE1", slot)
        for slot in T.serial(L0C_SLOTS):
            T.ascend_wait_flag("FIX_M", slot)
        for slot in T.serial(UB_SLOTS):
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", UB_EMPTY + slot)
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", SECOND_VECTOR_CORE + UB_EMPTY + slot)

    # A macro's text knows no functions of its own, so what a walk visits with is made out here.
    def multiplier(rings: Any, call: Any, accumulators: Any) -> Any:
        @T.macro
        def visit(block: Any) -> None:
            wanted = T.alloc_var("int32")
            key = T.alloc_var("int32")
            tiles_here = T.alloc_var("int32")
            tiles_here = tile_count(block)
            if block.steps > 0:
                look_at_windows(call, block, rings.low, rings.high)
                load_queries(rings, call, block)
                for step in T.serial(block.steps):
                    key = block.begin + step * STEP_KEYS
                    wanted = 0
                    for tile in T.serial(tiles_here):
                        if is_active(rings.low, rings.high, tile, key):
                            wanted += 1
                    if wanted > 0:
                        bring_keys(rings, call, block, key)
                        for tile in T.serial(tiles_here):
                            if is_active(rings.low, rings.high, tile, key):
                                multiply(rings, accumulators, tile, T.truncmod(rings.steps_done[0] + step, 2))
                        T.ascend_set_flag("M_MTE1", rings.turn[0] % L0B_SLOTS)
                        rings.turn[0] += 1
                T.ascend_set_flag("M_MTE1", QUERIES_IN_L0)
                rings.steps_done[0] += block.steps

        return visit

    @T.macro
    def cube_side(call: Any, core: Any, accumulators: Any) -> None:
        rings = Rings()
        open_cube(rings)
        walk(call, core, multiplier(rings, call, accumulators))
        close_cube()

    @T.macro
    def open_vector(state: Any) -> None:
        lines = T.alloc_shared((LINE_SLOTS, per_tile, STEP_KEYS), "bfloat16")
        moved = T.alloc_shared((LINE_SLOTS, per_tile, STEP_KEYS), "bfloat16")
        weights_ub = T.alloc_shared((BLOCK_TILES * TILE_ROWS,), "bfloat16")
        weights = T.alloc_shared((BLOCK_TILES * TILE_ROWS,), "float32")
        taken = T.alloc_var("int32", init=0)
        steps_done = T.alloc_var("int32", init=0)
        low = T.alloc_local((BLOCK_TILES,), "int32")
        high = T.alloc_local((BLOCK_TILES,), "int32")
        state.keep(lines=lines, moved=moved, weights_ub=weights_ub, weights=weights)
        state.keep(taken=taken.buffer, steps_done=steps_done.buffer, low=low, high=high)
        for slot in T.serial(UB_SLOTS):
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", UB_EMPTY + slot)
        for slot in T.serial(LINE_SLOTS):
            T.ascend_set_flag("MTE3_V", slot)
        T.ascend_set_flag("V_MTE2", WEIGHTS)
        if clean:
            fill_ub = T.alloc_shared((FILL_COLUMNS,), "bfloat16")
            state.keep(fill_ub=fill_ub)
            with T.SimdVF():
                for i in T.serial(T.uint16(FILL_COLUMNS // NARROW_LANES)):
                    bits = T.simd.vdup(T.uint16(MINUS_INFINITY), "uint16")
                    T.simd.vsts(
                        state.fill_ub[T.cast(i, "int32") * NARROW_LANES],
                        T.reinterpret(f"bfloat16x{NARROW_LANES}", bits),
                        dist="NORM_B16",
                    )
            T.ascend_set_flag("V_MTE3", FILL)
            T.ascend_wait_flag("V_MTE3", FILL)

    @T.macro
    def close_vector() -> None:
        for slot in T.serial(LINE_SLOTS):
            T.ascend_wait_flag("MTE3_V", slot)
        T.ascend_wait_flag("V_MTE2", WEIGHTS)

    @T.macro
    def bring_weights(state: Any, call: Any, block: Any) -> None:
        first = T.alloc_var("int32")
        count = T.alloc_var("int32")
        first = block.first * heads
        count = block.count * heads
        T.ascend_wait_flag("V_MTE2", WEIGHTS)
        T.copy(looked_at(call.weights, (all_rows,))[first : first + count], state.weights_ub[0:count])
        T.ascend_set_flag("MTE2_V", WEIGHTS)
        T.ascend_wait_flag("MTE2_V", WEIGHTS)
        with T.SimdVF():
            for i in T.serial(T.uint16(BLOCK_TILES * TILE_ROWS // VECTOR_LANES)):
                bits = T.simd.vld(state.weights_ub[T.cast(i, "int32") * VECTOR_LANES], dist="UNPK_B16")
                wide = T.simd.vcvt(bits, "float32", part=0)
                T.simd.vsts(state.weights[T.cast(i, "int32") * VECTOR_LANES], wide)
        T.ascend_set_flag("V_MTE2", WEIGHTS)

    @T.macro
    def add_heads(state: Any, accumulators: Any, slot: Any, line: Any, first_weight: Any, held: Any) -> None:
        """The weighted sums of a tile's ``held`` queries, one line of bf16 each."""
        with T.SimdVF():
            sums = T.simd.alloc_local((SUMS,), "float32")
            for query in T.serial(T.cast(held, "uint16")):
                for i in T.unroll(SUMS, explicit=True):
                    sums[i] = T.simd.vdup(T.float32(0.0), "float32")
                for head in T.serial(T.uint16(heads)):
                    row = T.cast(query, "int32") * heads + T.cast(head, "int32")
                    weight = T.simd.vld(state.weights[first_weight + row], dist="BRC_B32")
                    for i in T.unroll(SUMS, explicit=True):
                        score = T.simd.vrelu(T.simd.vld(accumulators[slot, row, i * VECTOR_LANES]))
                        T.simd.vmula(sums[i], score, weight)
                for i in T.unroll(SUMS, explicit=True):
                    narrow = T.simd.vcvt(sums[i], "bfloat16", sat=False, part=0)
                    T.simd.vsts(
                        state.lines[line, T.cast(query, "int32"), i * VECTOR_LANES], narrow, dist="PK_B32"
                    )

    @T.macro
    def move_down(state: Any, line: Any, query: Any, distance: Any) -> None:
        """A query's line from key ``distance`` on to the start of a line."""
        with T.SimdVF():
            for i in T.unroll(STEP_KEYS // NARROW_LANES, explicit=True):
                place = T.simd.vadds(
                    T.simd.vci(T.int16(0), "int16"), T.cast(distance + i * NARROW_LANES, "int16")
                )
                inside = T.simd.vmins(place, T.int16(STEP_KEYS - 1))
                value = T.simd.vgather2(
                    state.lines[line, query, 0], T.reinterpret(inside, f"uint16x{NARROW_LANES}")
                )
                T.simd.vsts(state.moved[line, query, i * NARROW_LANES], value, dist="NORM_B16")

    @T.macro
    def finish_tile(state: Any, call: Any, accumulators: Any, block: Any, tile: Any, key: Any) -> None:
        held = T.alloc_var("int32")
        query = T.alloc_var("int32")
        first = T.alloc_var("int32")
        behind = T.alloc_var("int32")
        held = T.min(per_tile, block.count - tile * per_tile)
        T.ascend_wait_flag("MTE3_V", state.taken[0] % LINE_SLOTS)
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_V", UB_FULL + state.taken[0] % UB_SLOTS)
        add_heads(
            state,
            accumulators,
            state.taken[0] % UB_SLOTS,
            state.taken[0] % LINE_SLOTS,
            tile * (per_tile * heads),
            held,
        )
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", UB_EMPTY + state.taken[0] % UB_SLOTS)
        for one in T.serial(held):
            start, end = window(call, block.first + tile * per_tile + one)
            if T.And(start > key, T.And(start < end, start < key + STEP_KEYS)):
                move_down(state, state.taken[0] % LINE_SLOTS, one, start - key)
        T.ascend_set_flag("V_MTE3", state.taken[0] % LINE_SLOTS)
        T.ascend_wait_flag("V_MTE3", state.taken[0] % LINE_SLOTS)
        for one in T.serial(held):
            query = block.first + tile * per_tile + one
            start, end = window(call, query)
            first = T.max(key, start)
            behind = T.min(T.min(key + STEP_KEYS, end), start + columns)
            if first < behind:
                if start > key:
                    T.copy(
                        state.moved[state.taken[0] % LINE_SLOTS, one, 0 : behind - first],
                        call.out[query, first - start : behind - start],
                    )
                else:
                    T.copy(
                        state.lines[state.taken[0] % LINE_SLOTS, one, 0 : behind - first],
                        call.out[query, first - start : behind - start],
                    )
        T.ascend_set_flag("MTE3_V", state.taken[0] % LINE_SLOTS)
        state.taken[0] += 1

    @T.macro
    def fill_rest(state: Any, call: Any, block: Any, vector_core: Any) -> None:
        """Minus infinity behind the windows of every second query, if the block is this core's to clean."""
        mine = T.alloc_var("int32")
        query = T.alloc_var("int32")
        held = T.alloc_var("int32")
        pieces = T.alloc_var("int32")
        at = T.alloc_var("int32")
        mine = 0
        if block.cleans > 0:
            mine = T.truncdiv(block.count + 1 - vector_core, 2)
        for one in T.serial(mine):
            query = block.first + 2 * one + vector_core
            start, end = window(call, query)
            held = T.min(end - start, columns)
            pieces = T.truncdiv(columns - held + FILL_COLUMNS - 1, FILL_COLUMNS)
            for piece in T.serial(pieces):
                at = held + piece * FILL_COLUMNS
                T.copy(
                    state.fill_ub[0 : T.min(FILL_COLUMNS, columns - at)],
                    call.out[query, at : at + T.min(FILL_COLUMNS, columns - at)],
                )

    def finisher(state: Any, call: Any, accumulators: Any, vector_core: Any) -> Any:
        @T.macro
        def visit(block: Any) -> None:
            key = T.alloc_var("int32")
            tiles_here = T.alloc_var("int32")
            tiles_here = tile_count(block)
            if block.steps > 0:
                look_at_windows(call, block, state.low, state.high)
                bring_weights(state, call, block)
                for step in T.serial(block.steps):
                    if T.truncmod(state.steps_done[0] + step, 2) == vector_core:
                        key = block.begin + step * STEP_KEYS
                        for tile in T.serial(tiles_here):
                            if is_active(state.low, state.high, tile, key):
                                finish_tile(state, call, accumulators, block, tile, key)
                state.steps_done[0] += block.steps
            if clean:
                fill_rest(state, call, block, vector_core)

        return visit

    @T.macro
    def vector_side(call: Any, core: Any, vector_core: Any, accumulators: Any) -> None:
        state = Rings()
        open_vector(state)
        walk(call, core, finisher(state, call, accumulators, vector_core))
        close_vector()

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            accumulators = T.alloc_shared((UB_SLOTS, tiles.rows, STEP_KEYS), "float32")
            with T.Cube():
                cube_side(call, core, accumulators)
            with T.Vector() as vector_core:
                vector_side(call, core, vector_core, accumulators)

    return block


def key_slot(rings: Rings) -> Any:
    """The L1 slot of the running step, as an expression: a macro's argument would have no known bounds."""
    return rings.turn[0] % KEY_SLOTS


def aligned_down(key: Any) -> Any:
    """The start of the 16 keys that ``key`` lies in: a fractal of scales."""
    import tilelang.ascend.language as T

    return T.truncdiv(key, FRACTAL) * FRACTAL
