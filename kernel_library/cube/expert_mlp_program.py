"""The program of expert_mlp: two block-scaled grouped products in one launch, an all-core barrier between.

Both phases run on one set of rings. In the first one a tile of B is 128 rows of gates and, beside them, the
128 rows of ups of the same columns, so that one accumulator holds all that an activation needs. The vector
cores quantise the activations into global memory; behind the barrier they are the second phase's A.

The first half of a tile of B is the first vector core's to widen and the second half the second one's: gates
and ups need no other program than two halves that lie side by side.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from typing import Any

import msgspec

from kaas.kernel_library.cube.core_barrier import CORE_BARRIER_SOURCE, core_barrier
from kaas.kernel_library.cube.cube_pipeline import (
    CUBE_KERNEL_SOURCES,
    Rings,
    cube_pipeline,
    operand_copies,
    tile_origin,
    tile_walk,
)
from kaas.kernel_library.cube.gated_epilogue import GATED, GATED_EPILOGUE_SOURCES, WIDTH, gated_epilogue
from kaas.kernel_library.cube.gemm_tiles import GemmTiles
from kaas.kernel_library.cube.group_layout import Span, group_reader
from kaas.kernel_library.cube.matrix_views import Head, Slab
from kaas.kernel_library.cube.scaled_operands import PAIR, SCALED_OPERAND_SOURCES, scaled_operands
from kaas.kernel_library.cube.widened_operand import FACTOR, WIDENED_OPERAND_SOURCES, widened_operand
from kaas.kernel_library.entry import Entry
from kaas.proto.extents import Extent

EXPERT_MLP_SOURCES = (
    *CUBE_KERNEL_SOURCES,
    *SCALED_OPERAND_SOURCES,
    *WIDENED_OPERAND_SOURCES,
    *GATED_EPILOGUE_SOURCES,
    CORE_BARRIER_SOURCE,
    "kaas.kernel_library.cube.expert_mlp_program",
    "kaas.kernel_library.cube.group_layout",
    "kaas.kernel_library.cube.matrix_views",
)
"""Modules that decide what this program is."""

ON_CUBE = "float8_e4m3fn"


class _Product(msgspec.Struct, frozen=True, kw_only=True):
    """One phase: its sum's length, its tiles along N, and how far apart the halves of a tile of B lie."""

    k: int
    columns: int
    tile_columns: int
    half_distance: int

    @property
    def n_tiles(self) -> int:
        return -(-self.columns // self.tile_columns)


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """One tile of one phase: its operands, where it begins, and what its epilogue needs."""

    product: _Product
    a: Any
    b: Any
    sfa: Any
    sfb: Any
    row: Any
    col: Any
    end: Any
    k_steps: int
    weights: Any
    h: Any
    h_scales: Any
    y: Any


class _VectorCoresHalf:
    """B as a vector core sees it that takes the rows behind its number: they lie ``distance`` apart."""

    def __init__(self, b: Any, vector_core: Any, distance: int) -> None:
        self._b, self._shift = b, vector_core * (distance - GATED)

    def __getitem__(self, region: tuple[slice, slice]) -> Any:
        rows, k = region
        return self._b[rows.start + self._shift : rows.stop + self._shift, k]


def expert_mlp_program(
    entry: Entry,
    tiles: GemmTiles,
    cores: int,
    *,
    groups: Extent,
    m: Extent,
    hidden: int,
    intermediate: int,
    widens: bool,
    clamp: float | None,
) -> Any:
    """The TileLang function; ``entry`` declares the arguments that families/expert_mlp.py lists.

    ``widens`` says that the weights are e2m1. Tiles are ``WIDTH`` columns wide.
    """
    import tilelang.ascend.language as T

    group_count, rows = entry.extent(groups), entry.extent(m)
    up = _Product(k=hidden, columns=intermediate, tile_columns=GATED, half_distance=intermediate)
    down = _Product(k=intermediate, columns=hidden, tile_columns=WIDTH, half_distance=GATED)
    bm, bk, l0c_stages, l1_stages = tiles.block_m, tiles.block_k, tiles.l0c_stages, tiles.l1_stages
    step_pairs = bk // PAIR
    ragged = hidden % bk != 0 or intermediate % bk != 0
    a_copies = operand_copies(tiles, bm, 1, k_major=False)
    b_copies = operand_copies(tiles, WIDTH, 1, k_major=False)
    scaled = scaled_operands(tiles, ragged=ragged)
    widened = widened_operand(tiles) if widens else None
    epilogue = gated_epilogue(tiles, factor=FACTOR if widens else 1.0, clamp=clamp)
    barrier = core_barrier()
    reader = group_reader(rows)

    @T.macro
    def load_weights(rings: Any, place: Any, k: Any, pair: Any) -> None:
        """A step of B and its scales, in two halves where they do not lie one behind the other."""
        other = place.col + place.product.half_distance
        if place.product.half_distance == GATED:
            if widened is None:
                b_copies.load(place.b, rings.b_l1[rings.l1_slot(), :, :], place.col, k)
            T.copy(
                place.sfb[pair : pair + step_pairs, place.col : place.col + WIDTH],
                rings.sfb_l1[rings.l1_slot(), :, :],
                transpose=True,
            )
        else:
            if widened is None:
                T.copy(
                    place.b[place.col : place.col + GATED, k : k + bk],
                    rings.b_l1[rings.l1_slot(), 0:GATED, :],
                )
                T.copy(
                    place.b[other : other + GATED, k : k + bk], rings.b_l1[rings.l1_slot(), GATED:WIDTH, :]
                )
            T.copy(
                place.sfb[pair : pair + step_pairs, place.col : place.col + GATED],
                rings.sfb_l1[rings.l1_slot(), 0:GATED, :],
                transpose=True,
            )
            T.copy(
                place.sfb[pair : pair + step_pairs, other : other + GATED],
                rings.sfb_l1[rings.l1_slot(), GATED:WIDTH, :],
                transpose=True,
            )

    @T.macro
    def load(rings: Any, place: Any, step: Any) -> None:
        pair = step * step_pairs
        if ragged:
            rings.pairs_left[0] = T.min(place.product.k // PAIR - pair, step_pairs)
        a_copies.load(place.a, rings.a_l1[rings.l1_slot(), :, :], place.row, step * bk)
        T.copy(
            place.sfa[pair : pair + step_pairs, place.row : place.row + bm],
            rings.sfa_l1[rings.l1_slot(), :, :],
            transpose=True,
        )
        load_weights(rings, place, step * bk, pair)

    @T.macro
    def feed(rings: Any, part: Any) -> None:
        a_copies.feed(rings.a_l1, rings.l1_slot(), rings.a_l0[rings.l0_slot(), :, :], part)
        b_copies.feed(rings.b_l1, rings.l1_slot(), rings.b_l0[rings.l0_slot(), :, :], part)
        scaled.feed(rings, part)

    pipeline = cube_pipeline(
        tiles,
        dtype_a=ON_CUBE,
        dtype_b=ON_CUBE,
        a_l1_tile=a_copies.l1_tile,
        b_l1_tile=b_copies.l1_tile,
        load=load,
        feed=feed,
        multiply=scaled.multiply,
        allocate=scaled.allocate,
        parts_of=scaled.parts_of,
        acquire=None if widened is None else widened.acquire,
        release=None if widened is None else widened.release,
    )

    def place_in(product: _Product, call: Any, group: Any, end: Any, row: Any, col: Any) -> _Place:
        is_up = product is up
        return _Place(
            product=product,
            a=Head(call.x if is_up else call.h, end),
            b=Slab(call.w1 if is_up else call.w2, 0, group),
            sfa=call.x_scales if is_up else call.h_scales,
            sfb=Slab(call.w1_scales if is_up else call.w2_scales, 0, group),
            row=row,
            col=col,
            end=end,
            k_steps=-(-product.k // bk),
            weights=call.weights,
            h=call.h,
            h_scales=call.h_scales,
            y=call.y,
        )

    def phase(product: _Product) -> Any:
        n_tiles, col_of = product.n_tiles, tile_origin(product.columns)

        @T.macro
        def walk(call: Any, core: Any, counter: Any, visit: Any) -> None:
            mine = T.alloc_var("int32")
            mine = core
            turns = T.alloc_var("int32")
            m_tiles = T.alloc_var("int32")
            row = T.alloc_var("int32")
            span = Span()
            reader.open(span)
            for group in T.serial(group_count):
                start, end = reader.advance(span, call.grouped_layout, group)
                m_tiles = T.truncdiv(end - start + bm - 1, bm)
                one_group = tile_walk(m_tiles, n_tiles, tiles.window_m, cores)
                turns = one_group.turns_of(mine)
                for turn in T.serial(turns):
                    tile_row, tile_col = one_group.place_of(turn * cores + mine)
                    row = start + tile_row * bm
                    col = col_of(tile_col, n_tiles, product.tile_columns)
                    visit(counter.turn[0], place_in(product, call, group, end, row, col))
                    counter.turn[0] += 1
                # The first tile of the next group that is this core's in the sequence of all tiles.
                mine = T.truncmod(mine + cores - T.truncmod(m_tiles * n_tiles, cores), cores)

        return walk

    walk_up, walk_down = phase(up), phase(down)

    # A macro's text knows no functions of its own, so what a walk visits with is made out here.
    def multiplier(rings: Any, accumulator_ub: Any) -> Any:
        @T.macro
        def multiply_tile(turn: Any, place: Any) -> None:
            pipeline.product(rings, turn, place, place.k_steps)
            epilogue.hand_over(rings, turn, accumulator_ub)
            pipeline.released(turn)

        return multiply_tile

    def finisher(state: Any, staged: Any, b_l1: Any, vector_core: Any, finish: Any) -> Any:
        def halves_of(place: _Place) -> Any:
            distance = place.product.half_distance
            return place.b if distance == GATED else _VectorCoresHalf(place.b, vector_core, distance)

        @T.macro
        def finish_half(turn: Any, place: Any) -> None:
            if widened is not None:
                for step in T.serial(place.k_steps):
                    widened.widen(staged, halves_of(place), b_l1, vector_core, place.col, step * bk)
            finish(state, turn, place, place.row + vector_core * (bm // 2))

        return finish_half

    @T.macro
    def cube_side(call: Any, core: Any, accumulator_ub: Any, b_l1: Any) -> None:
        rings, counter = Rings(), Rings()
        turn = T.alloc_var("int32", init=0)
        counter.keep(turn=turn.buffer)
        if widened is not None:
            rings.keep(b_l1=b_l1)
            widened.open_cube()
        pipeline.open(rings)
        walk_up(call, core, counter, multiplier(rings, accumulator_ub))
        barrier.cube_side()
        walk_down(call, core, counter, multiplier(rings, accumulator_ub))
        pipeline.close()
        epilogue.close_cube()

    @T.macro
    def vector_side(call: Any, core: Any, vector_core: Any, accumulator_ub: Any, b_l1: Any) -> None:
        counter = Rings()
        turn = T.alloc_var("int32", init=0)
        counter.keep(turn=turn.buffer)
        state = epilogue.open(accumulator_ub)
        staged = None if widened is None else widened.open()
        walk_up(call, core, counter, finisher(state, staged, b_l1, vector_core, epilogue.finish_gated))
        barrier.vector_side()
        walk_down(call, core, counter, finisher(state, staged, b_l1, vector_core, epilogue.finish_sums))
        epilogue.close()
        if widened is not None:
            widened.close()

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            accumulator_ub = T.alloc_shared((l0c_stages, bm // 2, WIDTH), "float32")
            b_l1 = None if widened is None else T.alloc_l1((l1_stages, WIDTH, bk), ON_CUBE)
            with T.Cube():
                cube_side(call, core, accumulator_ub, b_l1)
            with T.Vector() as vector_core:
                vector_side(call, core, vector_core, accumulator_ub, b_l1)

    return entry.prim_func(block)
