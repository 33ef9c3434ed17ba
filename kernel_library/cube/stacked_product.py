"""Stacked product: one kernel that computes many matrix products on one set of cube pipelines.

The products differ in where their matrices lie and how long their sums are; tile sizes, layouts and dtypes
are the same. A family says which tiles of which product a core owns, as a ``walk``; this module multiplies.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.cube.cube_pipeline import (
    CUBE_KERNEL_SOURCES,
    Rings,
    VectorEpilogue,
    cube_pipeline,
    operand_copies,
    vector_epilogue,
)
from kaas.kernel_library.cube.gemm_tiles import GemmTiles
from kaas.kernel_library.cube.product_operands import ProductOperands
from kaas.kernel_library.cube.quantised_epilogue import QUANTISED_EPILOGUE_SOURCES, quantised_epilogue
from kaas.kernel_library.cube.scaled_operands import PAIR, SCALED_OPERAND_SOURCES, scaled_operands
from kaas.kernel_library.cube.widened_operand import FACTOR, WIDENED_OPERAND_SOURCES, widened_operand
from kaas.kernel_library.entry import Entry
from kaas.proto.dtypes import ELEMENT_TYPES

STACKED_PRODUCT_SOURCES = (
    *CUBE_KERNEL_SOURCES,
    *SCALED_OPERAND_SOURCES,
    *WIDENED_OPERAND_SOURCES,
    *QUANTISED_EPILOGUE_SOURCES,
    "kaas.kernel_library.cube.matrix_views",
    "kaas.kernel_library.cube.product_operands",
    "kaas.kernel_library.cube.stacked_product",
)
"""Modules that decide what a family built on this program generates."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One output tile of one product: the matrices, the tile's first row and column, and its sum.

    The sum runs over ``k_length`` values from ``k_first`` on, in ``k_steps`` (at least one) steps of
    ``block_k``. All matrices are sliced like matrices; what lies outside of them counts as zero and is not
    written. Scaled operands have their scale pairs ``sfa`` and ``sfb``, [K/64, rows] with the K of their
    matrices; ``k_first`` is then a multiple of 64. A quantised ``d`` is the pair (values, scale pairs).
    """

    a: Any
    b: Any
    d: Any
    sfa: Any
    sfb: Any
    row: Any
    col: Any
    k_first: Any
    k_length: Any
    k_steps: Any


Walk = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
"""A macro ``walk(call, core, visit)`` that runs ``visit(turn, place)`` for each tile that ``core`` owns.

``turn`` counts them from 0. The cube core and its vector cores run the same walk.
"""


def stacked_product(
    entry: Entry,
    tiles: GemmTiles,
    cores: int,
    operands: ProductOperands,
    walk: Walk,
    *,
    columns: Any,
    ragged: bool,
) -> Any:
    """The TileLang function that multiplies what ``walk`` visits.

    ``columns`` is the extent N of every D; ``ragged`` says that a sum may end inside a step along K.
    """
    import tilelang.ascend.language as T

    on_cube, result = operands.on_cube, ELEMENT_TYPES[operands.dtype_d].tilelang
    bm, bn, bk, l0c_stages = tiles.block_m, tiles.block_n, tiles.block_k, tiles.l0c_stages
    step_pairs = bk // PAIR
    a_copies = operand_copies(tiles, bm, on_cube.bytes, k_major=operands.a_k_major)
    b_copies = operand_copies(tiles, bn, on_cube.bytes, k_major=operands.b_k_major)
    scaled = scaled_operands(tiles, ragged=ragged) if operands.scaled else None
    widened = widened_operand(tiles) if operands.widens_b else None
    epilogue = _epilogue(operands, tiles, columns)
    adds_in_store = operands.accumulate and not operands.through_vectors

    @T.macro
    def load(rings: Any, place: Any, step: Any) -> None:
        k = place.k_first + step * bk
        a_copies.load(place.a, rings.a_l1[rings.l1_slot(), :, :], place.row, k)
        if widened is None:
            b_copies.load(place.b, rings.b_l1[rings.l1_slot(), :, :], place.col, k)
        if scaled is not None:
            pair = T.truncdiv(place.k_first, PAIR) + step * step_pairs
            left = T.truncdiv(place.k_length + PAIR - 1, PAIR) - step * step_pairs
            scaled.load(rings, place.sfa, place.sfb, place.row, place.col, pair, left)

    @T.macro
    def feed(rings: Any, part: Any) -> None:
        a_copies.feed(rings.a_l1, rings.l1_slot(), rings.a_l0[rings.l0_slot(), :, :], part)
        b_copies.feed(rings.b_l1, rings.l1_slot(), rings.b_l0[rings.l0_slot(), :, :], part)
        if scaled is not None:
            scaled.feed(rings, part)

    @T.macro
    def multiply(rings: Any, accumulator: Any, clear: Any) -> None:
        T.gemm(
            rings.a_l0[rings.l0_slot(), :, :],
            rings.b_l0[rings.l0_slot(), :, :],
            accumulator,
            transpose_B=True,
            clear_accum=clear,
        )

    pipeline = cube_pipeline(
        tiles,
        dtype_a=on_cube.tilelang,
        dtype_b=on_cube.tilelang,
        a_l1_tile=a_copies.l1_tile,
        b_l1_tile=b_copies.l1_tile,
        load=load,
        feed=feed,
        multiply=multiply if scaled is None else scaled.multiply,
        allocate=None if scaled is None else scaled.allocate,
        parts_of=None if scaled is None else scaled.parts_of,
        acquire=None if widened is None else widened.acquire,
        release=None if widened is None else widened.release,
    )

    # A macro's text knows no functions of its own, so what a walk visits with is made out here.
    def multiplier(rings: Any, accumulator_ub: Any) -> Any:
        @T.macro
        def multiply_tile(turn: Any, place: Any) -> None:
            pipeline.product(rings, turn, place, place.k_steps)
            if operands.through_vectors:
                epilogue.hand_over(rings, turn, accumulator_ub)
            else:
                T.copy(
                    rings.l0c[turn % l0c_stages, :, :],
                    place.d[place.row : place.row + bm, place.col : place.col + bn],
                )
            pipeline.released(turn)

        return multiply_tile

    def finisher(state: Any, staged: Any, b_l1: Any, vector_core: Any) -> Any:
        @T.macro
        def finish_half(turn: Any, place: Any) -> None:
            if widened is not None:
                for step in T.serial(place.k_steps):
                    widened.widen(staged, place.b, b_l1, vector_core, place.col, place.k_first + step * bk)
            row = place.row + vector_core * (bm // 2)
            epilogue.finish(state, turn, place.d, row, place.col, None)

        return finish_half

    @T.macro
    def cube_side(call: Any, core: Any, accumulator_ub: Any, b_l1: Any) -> None:
        rings = Rings()
        if widened is not None:
            rings.keep(b_l1=b_l1)
            widened.open_cube()
        pipeline.open(rings)
        if adds_in_store:
            T.set_atomic("add", result)
        walk(call, core, multiplier(rings, accumulator_ub))
        pipeline.close()
        if operands.through_vectors:
            epilogue.close_cube()

    @T.macro
    def vector_side(call: Any, core: Any, vector_core: Any, accumulator_ub: Any, b_l1: Any) -> None:
        state = epilogue.open(accumulator_ub)
        staged = None if widened is None else widened.open()
        walk(call, core, finisher(state, staged, b_l1, vector_core))
        epilogue.close()
        if widened is not None:
            widened.close()

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            if operands.through_vectors:
                accumulator_ub = T.alloc_shared((l0c_stages, bm // 2, bn), "float32")
                b_l1 = None if widened is None else T.alloc_l1((tiles.l1_stages, bn, bk), on_cube.tilelang)
                with T.Cube():
                    cube_side(call, core, accumulator_ub, b_l1)
                with T.Vector() as vector_core:
                    vector_side(call, core, vector_core, accumulator_ub, b_l1)
            else:
                cube_side(call, core, None, None)

    return entry.prim_func(block)


def _epilogue(operands: ProductOperands, tiles: GemmTiles, columns: Any) -> VectorEpilogue:
    factor = FACTOR if operands.widens_b else 1.0
    if operands.quantised:
        return quantised_epilogue(tiles, columns, factor=factor, with_alpha=False)
    return vector_epilogue(
        tiles,
        ELEMENT_TYPES[operands.dtype_d].tilelang,
        factor=factor,
        with_alpha=False,
        accumulate=operands.accumulate,
    )
