"""Attention program: cube side and vector side of one launch, which walk the same tiles of queries."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

from kaas.kernel_library.attention.attention_cube import attention_cube
from kaas.kernel_library.attention.attention_softmax import attention_softmax
from kaas.kernel_library.attention.attention_tiles import CHUNK, WEIGHT_SLOTS, AttentionTiles
from kaas.kernel_library.cube.cube_pipeline import Rings
from kaas.kernel_library.entry import Entry

ATTENTION_SOURCES = (
    "kaas.kernel_library.attention.attention_cube",
    "kaas.kernel_library.attention.attention_program",
    "kaas.kernel_library.attention.attention_softmax",
    "kaas.kernel_library.attention.attention_tiles",
    "kaas.kernel_library.attention.finished_rows",
    "kaas.kernel_library.attention.row_views",
    "kaas.kernel_library.choice",
    "kaas.kernel_library.cube.cube_pipeline",
    "kaas.kernel_library.cube.gemm_fields",
    "kaas.kernel_library.cube.gemm_tiles",
    "kaas.kernel_library.entry",
)
"""For ``Family.sources`` of a family built on this module."""


def attention_program(
    entry: Entry,
    tiles: AttentionTiles,
    cores: int,
    *,
    walk: Callable[[Any, Any, Any], Any],
    load_query: Callable[[Any, Any], Any],
    load_keys: Callable[[Rings, Any, Any], Any],
    limits: Callable[[Rings, Any], Any],
    store: Callable[[Rings, Any, Any], Any],
    lse_pitch: int,
    merge: Callable[[Rings, Any, Any], Any] | None = None,
) -> Any:
    """The TileLang function that takes every core through its tiles.

    ``walk(call, core, visit)`` is a macro that calls ``visit(place, blocks)`` for each tile of a core, with
    the blocks of keys that the tile meets; none is fine. The other macros are those of
    :func:`attention_cube` and :func:`attention_softmax`, which get that ``place``.

    ``merge(state, call, core)`` is a macro for vector cores that have no more tiles, where tiles meet parts
    of their keys only; ``core`` counts the vector cores.
    """
    import tilelang.ascend.language as T

    half = tiles.rows // 2
    cube = attention_cube(tiles, load_query=load_query, load_keys=load_keys)
    softmax = attention_softmax(
        tiles, limits=limits, store=store, lse_pitch=lse_pitch, as_part=merge is not None
    )

    @T.macro
    def cube_side(call: Any, core: Any, accumulator_ub: Any, weights_l1: Any) -> None:
        rings = Rings()
        cube.open(rings, accumulator_ub, weights_l1)
        walk(call, core, cube.visitor(rings))
        cube.close()

    @T.macro
    def vector_side(call: Any, core: Any, vector_core: Any, accumulator_ub: Any, weights_l1: Any) -> None:
        state = softmax.open(accumulator_ub, weights_l1, vector_core)
        walk(call, core, softmax.visitor(state, call))
        if merge is not None:
            merge(state, call, core * 2 + vector_core)
        softmax.close()

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            accumulator_ub = T.alloc_shared((tiles.accumulator_slots, half, CHUNK), "float32")
            weights_l1 = T.alloc_l1((WEIGHT_SLOTS, tiles.rows, tiles.keys), "bfloat16")
            with T.Cube():
                cube_side(call, core, accumulator_ub, weights_l1)
            with T.Vector() as vector_core:
                vector_side(call, core, vector_core, accumulator_ub, weights_l1)

    return entry.prim_func(block)
