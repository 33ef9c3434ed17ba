"""Scaled operands: the parts of a cube pipeline that bring e8m0 scales along with fp8 and fp4 operands.

Scales lie in global memory as 16-bit pairs [ceil(K/64), rows]: 16 rows of one pair are the 32 bytes that the
cube takes as a fractal of scales, so that a plain copy of [pairs, rows] puts them right. They keep to the
rings of their operands: a slot of L1 has its scales, an L0 tile has its scales at a sixteenth of its address.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.cube.cube_pipeline import Rings
from kaas.kernel_library.cube.gemm_tiles import GemmTiles

SCALED_OPERAND_SOURCES = ("kaas.kernel_library.cube.scaled_operands",)
"""For ``Family.sources`` of a family built on this module."""

PAIR = 64
"""Consecutive K that one pair of scales covers; cube steps are whole pairs."""


class ScaledOperands(msgspec.Struct, frozen=True):
    """Macros for :func:`kaas.kernel_library.cube.cube_pipeline.cube_pipeline`.

    ``allocate``, ``multiply`` and ``parts_of`` are passed on as they are. ``load(rings, sfa, sfb, row, col,
    pair, left)`` belongs into the family's ``load``: the scales of a K step from pair ``pair`` on, of which
    ``left`` pairs are left to the sum's end. ``feed(rings, part)`` belongs into its ``feed``.
    """

    allocate: Callable[[Rings], Any]
    load: Callable[[Rings, Any, Any, Any, Any, Any, Any], Any]
    feed: Callable[[Rings, Any], Any]
    multiply: Callable[[Rings, Any, Any], Any]
    parts_of: Callable[[Rings], Any] | None


def scaled_operands(tiles: GemmTiles, *, ragged: bool) -> ScaledOperands:
    """The macros for ``tiles``; ``ragged`` if a sum may end inside a K step.

    Scales behind the end are never multiplied with: what lies in L1 there may be NaN, which no zero of the
    operand would hide.
    """
    import tilelang.ascend.language as T

    bm, bn, stages = tiles.block_m, tiles.block_n, tiles.l1_stages
    step_pairs, part_pairs = tiles.block_k // PAIR, tiles.mad_k // PAIR

    @T.macro
    def allocate(rings: Any) -> None:
        sfa_l1 = T.alloc_l1((stages, bm, step_pairs), "uint16")
        sfb_l1 = T.alloc_l1((stages, bn, step_pairs), "uint16")
        sfa_l0 = T.alloc_l0a_sf(rings.a_l0)
        sfb_l0 = T.alloc_l0b_sf(rings.b_l0)
        rings.keep(sfa_l1=sfa_l1, sfb_l1=sfb_l1, sfa_l0=sfa_l0, sfb_l0=sfb_l0)
        if ragged:
            pairs_left = T.alloc_var("int32")
            depth = T.alloc_var("int32")
            rings.keep(pairs_left=pairs_left.buffer, depth=depth.buffer)

    @T.macro
    def load(rings: Any, sfa: Any, sfb: Any, row: Any, col: Any, pair: Any, left: Any) -> None:
        if ragged:
            rings.pairs_left[0] = T.min(left, step_pairs)
        T.copy(
            sfa[pair : pair + step_pairs, row : row + bm],
            rings.sfa_l1[rings.l1_slot(), :, :],
            transpose=True,
        )
        T.copy(
            sfb[pair : pair + step_pairs, col : col + bn],
            rings.sfb_l1[rings.l1_slot(), :, :],
            transpose=True,
        )

    def depth_of(rings: Rings) -> Any:
        """Pairs of the running cube step; the bound of the variable is said again to whom proves things."""
        return T.min(rings.depth[0], part_pairs) if ragged else part_pairs

    @T.macro
    def feed(rings: Any, part: Any) -> None:
        first = part * part_pairs
        if ragged:
            rings.depth[0] = T.min(rings.pairs_left[0] - first, part_pairs)
        # The cube takes fractals of scales at the pitch of its own depth: a short step lies short in L0.
        T.copy(
            rings.sfa_l1[rings.l1_slot(), :, first : first + depth_of(rings)],
            rings.sfa_l0[rings.l0_slot(), :, 0 : depth_of(rings)],
        )
        T.copy(
            rings.sfb_l1[rings.l1_slot(), :, first : first + depth_of(rings)],
            rings.sfb_l0[rings.l0_slot(), :, 0 : depth_of(rings)],
        )

    @T.macro
    def multiply(rings: Any, accumulator: Any, clear: Any) -> None:
        T.gemm_blockscaled(
            rings.a_l0[rings.l0_slot(), :, 0 : depth_of(rings) * PAIR],
            rings.b_l0[rings.l0_slot(), :, 0 : depth_of(rings) * PAIR],
            accumulator,
            rings.sfa_l0[rings.l0_slot(), :, 0 : depth_of(rings)],
            rings.sfb_l0[rings.l0_slot(), :, 0 : depth_of(rings)],
            transpose_B=True,
            clear_accum=clear,
        )

    def parts_of(rings: Rings) -> Any:
        return T.truncdiv(rings.pairs_left[0] + part_pairs - 1, part_pairs)

    return ScaledOperands(allocate, load, feed, multiply, parts_of if ragged else None)
