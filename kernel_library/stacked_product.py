"""Stacked product: one kernel that computes many matrix products on one set of cube pipelines.

The products differ in where their matrices lie and how long their sums are; tile sizes, layouts and dtypes
are the same. A family says which tiles of which product a core owns, as a ``walk``; this module multiplies.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kaas.kernel_library.cube_pipeline import (
    CUBE_KERNEL_SOURCES,
    Rings,
    cube_pipeline,
    operand_copies,
    vector_epilogue,
)
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.gemm_tiles import GemmTiles
from kaas.proto.dtypes import ELEMENT_TYPES

STACKED_PRODUCT_SOURCES = (
    *CUBE_KERNEL_SOURCES,
    "kaas.kernel_library.matrix_views",
    "kaas.kernel_library.stacked_product",
)
"""Modules that decide what a family built on this program generates."""


@dataclass(frozen=True)
class Place:
    """One output tile of one product: the matrices, the tile's first row and column, and its sum.

    The sum runs over ``k_steps`` (at least one) steps of ``block_k`` from ``k_first`` on. ``a``, ``b`` and
    ``d`` are sliced like matrices; what lies outside them counts as zero and is not written.
    """

    a: Any
    b: Any
    d: Any
    row: Any
    col: Any
    k_first: Any
    k_steps: Any


Walk = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
"""A macro ``walk(call, core, visit)`` that runs ``visit(turn, place)`` for each tile that ``core`` owns.

``turn`` counts them from 0. The cube core and its vector cores run the same walk.
"""


def uses_vector_epilogue(dtype_d: str, *, accumulate: bool) -> bool:
    """Whether the sum with the old D passes the vector cores.

    An fp32 D is added to by the store itself. A narrower one would be rounded twice that way, once for the
    product and once for the sum.
    """
    return accumulate and dtype_d != "fp32"


def stacked_product(
    entry: Entry,
    tiles: GemmTiles,
    cores: int,
    *,
    dtype: str,
    dtype_d: str,
    a_k_major: bool,
    b_k_major: bool,
    accumulate: bool,
    walk: Walk,
) -> Any:
    """The TileLang function that multiplies what ``walk`` visits.

    ``dtype`` is that of both operands; an operand that is ``k_major`` lies as [K, rows] instead of [rows, K].
    """
    import tilelang.ascend.language as T

    operand, result = ELEMENT_TYPES[dtype], ELEMENT_TYPES[dtype_d].tilelang
    bm, bn, bk, l0c_stages = tiles.block_m, tiles.block_n, tiles.block_k, tiles.l0c_stages
    a_copies = operand_copies(tiles, bm, operand.bytes, k_major=a_k_major)
    b_copies = operand_copies(tiles, bn, operand.bytes, k_major=b_k_major)
    through_vectors = uses_vector_epilogue(dtype_d, accumulate=accumulate)

    @T.macro
    def load(rings: Any, place: Any, step: Any) -> None:
        k = place.k_first + step * bk
        a_copies.load(place.a, rings.a_l1[rings.l1_slot(), :, :], place.row, k)
        b_copies.load(place.b, rings.b_l1[rings.l1_slot(), :, :], place.col, k)

    @T.macro
    def feed(rings: Any, part: Any) -> None:
        a_copies.feed(rings.a_l1, rings.l1_slot(), rings.a_l0[rings.l0_slot(), :, :], part)
        b_copies.feed(rings.b_l1, rings.l1_slot(), rings.b_l0[rings.l0_slot(), :, :], part)

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
        dtype_a=operand.tilelang,
        dtype_b=operand.tilelang,
        a_l1_tile=a_copies.l1_tile,
        b_l1_tile=b_copies.l1_tile,
        load=load,
        feed=feed,
        multiply=multiply,
    )
    epilogue = vector_epilogue(tiles, result, with_alpha=False, accumulate=accumulate)

    # A macro's text knows no functions of its own, so what a walk visits with is made out here.
    def multiplier(rings: Any, accumulator_ub: Any) -> Any:
        @T.macro
        def multiply_tile(turn: Any, place: Any) -> None:
            pipeline.product(rings, turn, place, place.k_steps)
            if through_vectors:
                epilogue.hand_over(rings, turn, accumulator_ub)
            else:
                T.copy(
                    rings.l0c[turn % l0c_stages, :, :],
                    place.d[place.row : place.row + bm, place.col : place.col + bn],
                )
            pipeline.released(turn)

        return multiply_tile

    def finisher(state: Any, vector_core: Any) -> Any:
        @T.macro
        def finish_half(turn: Any, place: Any) -> None:
            row = place.row + vector_core * (bm // 2)
            epilogue.finish(state, turn, place.d, row, place.col, None)

        return finish_half

    @T.macro
    def cube_side(call: Any, core: Any, accumulator_ub: Any) -> None:
        rings = Rings()
        pipeline.open(rings)
        if accumulate and not through_vectors:
            T.set_atomic("add", result)
        walk(call, core, multiplier(rings, accumulator_ub))
        pipeline.close()
        if through_vectors:
            epilogue.close_cube()

    @T.macro
    def vector_side(call: Any, core: Any, vector_core: Any, accumulator_ub: Any) -> None:
        state = epilogue.open(accumulator_ub)
        walk(call, core, finisher(state, vector_core))
        epilogue.close()

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            if through_vectors:
                accumulator_ub = T.alloc_shared((l0c_stages, bm // 2, bn), "float32")
                with T.Cube():
                    cube_side(call, core, accumulator_ub)
                with T.Vector() as vector_core:
                    vector_side(call, core, vector_core, accumulator_ub)
            else:
                cube_side(call, core, None)

    return entry.prim_func(block)
