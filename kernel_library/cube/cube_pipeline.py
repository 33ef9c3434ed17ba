"""Cube pipeline: what every matrix product does between global memory and its result, as TileLang macros.

    global memory --MTE2--> L1 ring --MTE1--> L0A/L0B (2 slots) --M--> L0C (1 or 2 slots)
    L0C --FIX--> global memory, or --FIX--> UB of both vector cores --V, MTE3--> global memory

Every ring has a "full" and an "empty" flag per slot, numbered by the slot; "empty" flags are raised before
the first tile and collected after the last. A family chooses its operands' shapes and copies, and joins the
parts: a :class:`TileWalk` says which tiles a core owns, :func:`cube_pipeline` multiplies one tile and
:func:`vector_epilogue` finishes it on the vector cores. Cube and vector side walk the same tiles.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.cube.gemm_tiles import GemmTiles
from kaas.kernel_library.spec import DYNAMIC

CUBE_KERNEL_SOURCES = (
    "kaas.kernel_library.choice",
    "kaas.kernel_library.cube.cube_pipeline",
    "kaas.kernel_library.cube.gemm_fields",
    "kaas.kernel_library.cube.gemm_tiles",
    "kaas.kernel_library.entry",
)
"""Modules that decide what a family built on this pipeline generates."""

PASS_CONFIGS: dict[str, Any] = {
    # The program places every flag itself: no solver runs, and lowering takes a fraction of a second.
    "tl.enable_auto_schedule": False,
    # UB buffers live across iterations on several pipes, which TileLang's liveness analysis does not see.
    "tl.disable_shared_memory_reuse": True,
    # UB is written by the cube side (L0C to UB), which the check takes for a missing initialisation.
    "tl.disable_buffer_init_check": True,
}

VECTOR_LANES = 64
"""fp32 elements of one vector register."""

FRACTAL = 16
LEAST_ORDERED_FRACTALS = 10
"""Shorter cube instructions on one accumulator may overtake each other."""

# Flags between a cube core and its two vector cores, one per accumulator slot. The second vector core sees
# the cube core's flags 16 and up as its own 0 and up.
CORE_PAIR = 4
UB_EMPTY = 0
UB_FULL = 2
SECOND_VECTOR_CORE = 16


class TileWalk(msgspec.Struct, frozen=True):
    """The output tiles of one matrix and who computes them; ``window`` tile rows are walked together.

    ``turns_of(core)`` is how many of the tiles a core owns, possibly none; its ``turn``-th one is tile
    ``turn * cores + core``. ``place_of(tile)`` is a tile's row and column, in tiles.
    """

    turns_of: Callable[[Any], Any]
    place_of: Callable[[Any], tuple[Any, Any]]


def tile_walk(m_tiles: Any, n_tiles: Any, window: int, cores: int) -> TileWalk:
    """The walk of ``m_tiles`` x ``n_tiles`` tiles (constants or expressions) by ``cores`` cores in turn."""
    import tilelang.ascend.language as T

    @T.macro
    def turns_of(core: Any) -> Any:
        # Kept in a variable: TVM turns a loop whose extent is known to be 0 or 1 into its body.
        turns = T.alloc_var("int32")
        turns = T.truncdiv(m_tiles * n_tiles + cores - 1 - core, cores)
        return turns

    @T.macro
    def place_of(tile: Any) -> Any:
        first = T.alloc_var("int32")
        rows = T.alloc_var("int32")
        rest = T.alloc_var("int32")
        first = T.truncdiv(tile, window * n_tiles) * window
        rows = T.min(m_tiles - first, window)
        rest = T.truncmod(tile, window * n_tiles)
        return first + T.truncmod(rest, rows), T.truncdiv(rest, rows)

    return TileWalk(turns_of, place_of)


def tile_origin(extent: Any) -> Any:
    """A macro ``origin(tile_index, count, block)``: the first element of a tile row or column.

    ``extent`` is a spec's dimension. A static one gets its bounds stated: copies of whole tiles then need no
    clamps and zero fills. A dynamic one is kept in a variable: proofs about its formula would cost most of
    the lowering time.
    """
    import tilelang.ascend.language as T

    @T.macro
    def origin(tile_index: Any, count: Any, block: int) -> Any:
        if extent == DYNAMIC:
            start = T.alloc_var("int32")
            start = tile_index * block
        else:
            T.assume(tile_index >= 0)
            T.assume(tile_index < count)
            start = tile_index * block
        return start

    return origin


class Rings:
    """The buffers of one cube core and its counters of ring turns, filled in by ``CubePipeline.open``.

    ``a_l1``, ``b_l1``: [stages, ...]; ``a_l0``, ``b_l0``: [2, ...]; ``l0c``: [slots, block_m, block_n] fp32.
    A family may keep buffers of its own. ``l1_slot`` and ``l0_slot`` are the slots in use, as expressions: an
    argument of a macro becomes a variable, about which TileLang knows no bounds.
    """

    a_l1: Any
    b_l1: Any
    a_l0: Any
    b_l0: Any
    l0c: Any
    l1_turn: Any
    l0_turn: Any
    l1_stages: int

    def keep(self, **buffers: Any) -> None:
        """Set attributes by name: TileLang's macros know no assignment to them."""
        self.__dict__.update(buffers)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def l1_slot(self) -> Any:
        """The L1 slot of the running K step."""
        return self.l1_turn[0] % self.l1_stages

    def l0_slot(self) -> Any:
        """The L0A/L0B slot of the running cube step."""
        return self.l0_turn[0] % 2


class CubePipeline(msgspec.Struct, frozen=True):
    """The macros of one cube core's rings. ``turn`` counts its tiles; accumulator slots go round with it.

    ``open(rings)`` allocates the buffers and raises the empty flags; ``product(rings, turn, where, k_steps)``
    sums one tile's product into slot ``turn % l0c_stages`` and leaves it to the fixpipe; ``released(turn)``
    says that the fixpipe is done with it; ``close()`` collects the empty flags.
    """

    open: Callable[[Rings], Any]
    product: Callable[[Rings, Any, Any, Any], Any]
    released: Callable[[Any], Any]
    close: Callable[[], Any]


def cube_pipeline(
    tiles: GemmTiles,
    *,
    dtype_a: str,
    dtype_b: str,
    a_l1_tile: tuple[int, ...],
    b_l1_tile: tuple[int, ...],
    load: Callable[[Rings, Any, Any], Any],
    feed: Callable[[Rings, Any], Any],
    multiply: Callable[[Rings, Any, Any], Any],
    allocate: Callable[[Rings], Any] | None = None,
    parts_of: Callable[[Rings], Any] | None = None,
    acquire: Callable[[Rings], Any] | None = None,
    release: Callable[[Rings], Any] | None = None,
) -> CubePipeline:
    """The pipeline of ``tiles`` for operands of the given TileLang dtypes and L1 tile shapes.

    Four macros fill it in: ``load(rings, where, step)`` issues the copies of K step ``step`` into the L1 slot
    on MTE2; ``where`` is passed through from ``product`` as it is, so a tuple keeps its expressions.
    ``feed(rings, part)`` copies cube step ``part`` of the L1 slot into the L0 slot on MTE1, and
    ``multiply(rings, accumulator, clear)`` issues it on M. ``allocate(rings)`` adds buffers of the family's.
    ``parts_of(rings)`` is how many cube steps the loaded K step takes, where that is not all of them.
    ``acquire(rings)`` and ``release(rings)`` stand around them where somebody else fills a slot of L1; a
    buffer that somebody else sees too is the caller's and kept in ``rings`` as ``a_l1`` or ``b_l1`` before.
    """
    import tilelang.ascend.language as T

    l1_stages, l0c_stages = tiles.l1_stages, tiles.l0c_stages
    bm, bn, mk = tiles.block_m, tiles.block_n, tiles.mad_k
    parts = tiles.block_k // mk
    needs_barrier = (bm // FRACTAL) * (bn // FRACTAL) < LEAST_ORDERED_FRACTALS

    @T.macro
    def open_rings(rings: Any) -> None:
        a_l1 = rings.a_l1 if "a_l1" in rings.__dict__ else T.alloc_l1((l1_stages, *a_l1_tile), dtype_a)
        b_l1 = rings.b_l1 if "b_l1" in rings.__dict__ else T.alloc_l1((l1_stages, *b_l1_tile), dtype_b)
        a_l0 = T.alloc_l0a((2, bm, mk), dtype_a)
        b_l0 = T.alloc_l0b((2, bn, mk), dtype_b)
        l0c = T.alloc_l0c((l0c_stages, bm, bn), "float32")
        l1_turn = T.alloc_var("int32", init=0)
        l0_turn = T.alloc_var("int32", init=0)
        rings.keep(a_l1=a_l1, b_l1=b_l1, a_l0=a_l0, b_l0=b_l0, l0c=l0c)
        rings.keep(l1_turn=l1_turn.buffer, l0_turn=l0_turn.buffer, l1_stages=l1_stages)
        if allocate is not None:
            allocate(rings)
        for slot in T.serial(l1_stages):
            T.ascend_set_flag("MTE1_MTE2", slot)
        for slot in T.serial(2):
            T.ascend_set_flag("M_MTE1", slot)
        for slot in T.serial(l0c_stages):
            T.ascend_set_flag("FIX_M", slot)

    @T.macro
    def product(rings: Any, turn: Any, where: Any, k_steps: Any) -> None:
        T.ascend_wait_flag("FIX_M", turn % l0c_stages)
        for step in T.serial(k_steps):
            T.ascend_wait_flag("MTE1_MTE2", rings.l1_slot())
            load(rings, where, step)
            T.ascend_set_flag("MTE2_MTE1", rings.l1_slot())
            T.ascend_wait_flag("MTE2_MTE1", rings.l1_slot())
            if acquire is not None:
                acquire(rings)
            for part in T.serial(parts if parts_of is None else parts_of(rings)):
                T.ascend_wait_flag("M_MTE1", rings.l0_slot())
                feed(rings, part)
                T.ascend_set_flag("MTE1_M", rings.l0_slot())
                T.ascend_wait_flag("MTE1_M", rings.l0_slot())
                multiply(rings, rings.l0c[turn % l0c_stages, :, :], T.And(step == 0, part == 0))
                if needs_barrier:
                    T.ascend_pipe_barrier("PIPE_M")
                T.ascend_set_flag("M_MTE1", rings.l0_slot())
                rings.l0_turn[0] += 1
            if release is not None:
                release(rings)
            T.ascend_set_flag("MTE1_MTE2", rings.l1_slot())
            rings.l1_turn[0] += 1
        T.ascend_set_flag("M_FIX", turn % l0c_stages)
        T.ascend_wait_flag("M_FIX", turn % l0c_stages)

    @T.macro
    def released(turn: Any) -> None:
        T.ascend_set_flag("FIX_M", turn % l0c_stages)

    @T.macro
    def close_rings() -> None:
        for slot in T.serial(l1_stages):
            T.ascend_wait_flag("MTE1_MTE2", slot)
        for slot in T.serial(2):
            T.ascend_wait_flag("M_MTE1", slot)
        for slot in T.serial(l0c_stages):
            T.ascend_wait_flag("FIX_M", slot)

    return CubePipeline(open=open_rings, product=product, released=released, close=close_rings)


class OperandCopies(msgspec.Struct, frozen=True):
    """How one operand that is stored ``k_major`` ([K, rows] instead of [rows, K]) reaches L0.

    ``l1_tile`` is the L1 tile's shape. ``load(source, l1_tile, first, step)`` copies rows ``first`` and up,
    columns ``step`` and up, of a global matrix into one; what lies outside the matrix becomes zero.
    ``feed(l1, slot, l0_tile, part)`` copies one cube step out of slot ``slot``.
    """

    l1_tile: tuple[int, int]
    load: Callable[[Any, Any, Any, Any], Any]
    feed: Callable[[Any, Any, Any, Any], Any]


def operand_copies(tiles: GemmTiles, rows: int, element_bytes: float, *, k_major: bool) -> OperandCopies:
    """The copies of an operand of ``rows`` tile rows whose elements have ``element_bytes`` bytes.

    The cube wants K along a row. An operand of 8 or 16 bits stored the other way is transposed between L1 and
    L0 (8 bits: ``rows`` is a multiple of 32); the 32-bit path has no such transpose and takes its own between
    global memory and L1.
    """
    import tilelang.ascend.language as T

    bk, mk = tiles.block_k, tiles.mad_k
    in_l0 = k_major and element_bytes < 4

    def load(source: Any, l1_tile: Any, first: Any, step: Any) -> Any:
        if not k_major:
            return T.copy(source[first : first + rows, step : step + bk], l1_tile)
        part = source[step : step + bk, first : first + rows]
        return T.copy(part, l1_tile) if in_l0 else T.copy(part, l1_tile, transpose=True)

    def feed(l1: Any, slot: Any, l0_tile: Any, part: Any) -> Any:
        if in_l0:
            return T.copy(l1[slot, part * mk : part * mk + mk, :], l0_tile, transpose=True)
        return T.copy(l1[slot, :, part * mk : part * mk + mk], l0_tile)

    return OperandCopies((bk, rows) if in_l0 else (rows, bk), load, feed)


class VectorEpilogue(msgspec.Struct, frozen=True):
    """The macros that take an accumulator through the vector cores.

    Cube side: ``hand_over(rings, turn, accumulator_ub)`` splits the accumulator by rows over both vector
    cores' UB, ``close_cube()`` collects what they still raise. Vector side: ``open(accumulator_ub)`` returns
    its buffers, ``finish(state, turn, d, row, col, alpha)`` makes its half of one tile, whose first row and
    column are given, and ``close()`` ends it. ``d`` is the matrix that the tile lies in. Both sides count the
    same turns. ``accumulator_ub`` is [l0c_stages, block_m / 2, block_n] fp32.
    """

    hand_over: Callable[[Rings, Any, Any], Any]
    close_cube: Callable[[], Any]
    open: Callable[[Any], Any]
    finish: Callable[[Any, Any, Any, Any, Any, Any], Any]
    close: Callable[[], Any]


def accumulator_hand_over(tiles: GemmTiles) -> tuple[Callable[[Rings, Any, Any], Any], Callable[[], Any]]:
    """``hand_over`` and ``close_cube`` of a :class:`VectorEpilogue`, which are the same for all of them."""
    import tilelang.ascend.language as T

    l0c_stages = tiles.l0c_stages

    @T.macro
    def hand_over(rings: Any, turn: Any, accumulator_ub: Any) -> None:
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", UB_EMPTY + turn % l0c_stages)
        T.ascend_cross_core_wait_flag(
            CORE_PAIR, "PIPE_FIX", SECOND_VECTOR_CORE + UB_EMPTY + turn % l0c_stages
        )
        T.dual_copy(rings.l0c[turn % l0c_stages, :, :], accumulator_ub[turn % l0c_stages, :, :])
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_FIX", UB_FULL + turn % l0c_stages)
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_FIX", SECOND_VECTOR_CORE + UB_FULL + turn % l0c_stages)

    @T.macro
    def close_cube() -> None:
        for slot in T.serial(l0c_stages):
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", UB_EMPTY + slot)
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", SECOND_VECTOR_CORE + UB_EMPTY + slot)

    return hand_over, close_cube


def vector_epilogue(
    tiles: GemmTiles,
    dtype_d: str,
    *,
    with_alpha: bool,
    accumulate: bool,
    factor: float = 1.0,
    load_old: Callable[[Any, Any, Any, Any], Any] | None = None,
    store_result: Callable[[Any, Any, Any, Any], Any] | None = None,
) -> VectorEpilogue:
    """D = round((alpha *) factor * accumulator (+ D)), half a tile per vector core.

    ``dtype_d`` is TileLang's name. ``factor`` is a power of two that the operands leave to the result.

    ``load_old(d, ub, row, col)`` and ``store_result(ub, d, row, col)`` replace the copies between D and a
    [block_m / 2, block_n] UB buffer where D is not a plain matrix.
    """
    import tilelang.ascend.language as T

    l0c_stages, bn, half = tiles.l0c_stages, tiles.block_n, tiles.block_m // 2
    vectors = half * bn // VECTOR_LANES

    def copy_in(d: Any, ub: Any, row: Any, col: Any) -> Any:
        return T.copy(d[row : row + half, col : col + bn], ub)

    def copy_out(ub: Any, d: Any, row: Any, col: Any) -> Any:
        return T.copy(ub, d[row : row + half, col : col + bn])

    bring_old = load_old or copy_in
    store_half = store_result or copy_out

    hand_over, close_cube = accumulator_hand_over(tiles)

    # A macro's scalar argument takes the macro's name for it, so ``alpha`` stays ``alpha`` all the way.
    @T.macro
    def combine(accumulator: Any, turn: Any, old: Any, result: Any, alpha: Any) -> None:
        with T.SimdVF():
            for vector in T.serial(T.uint16(vectors)):
                at = T.cast(vector, "int32") * VECTOR_LANES
                value = T.simd.vld(accumulator[turn % l0c_stages, at])
                if factor != 1.0:
                    value = T.simd.vmuls(value, T.float32(factor))
                if with_alpha:
                    value = T.simd.vmuls(value, alpha)
                if accumulate and dtype_d == "float32":
                    value = T.simd.vadd(value, T.simd.vld(old[at]))
                elif accumulate:
                    narrow = T.simd.vld(old[at], dist="UNPK_B16")
                    value = T.simd.vadd(value, T.simd.vcvt(narrow, "float32", part=0))
                if dtype_d == "float32":
                    T.simd.vsts(result[at], value)
                else:
                    # Not saturating: overflow becomes infinity and NaN stays NaN, as on the host.
                    T.simd.vsts(result[at], T.simd.vcvt(value, dtype_d, sat=False, part=0), dist="PK_B32")

    @T.macro
    def allocate(state: Any, accumulator_ub: Any) -> None:
        result_ub = T.alloc_shared((half, bn), dtype_d)
        old_ub = T.alloc_shared((half, bn), dtype_d) if accumulate else result_ub
        result = T.view(result_ub, (half * bn,))
        old = T.view(old_ub, (half * bn,))
        accumulator = T.view(accumulator_ub, (l0c_stages, half * bn))
        state.keep(result_ub=result_ub, old_ub=old_ub, result=result, old=old, accumulator=accumulator)
        for slot in T.serial(l0c_stages):
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", UB_EMPTY + slot)
        T.ascend_set_flag("MTE3_V", 0)
        if accumulate:
            T.ascend_set_flag("V_MTE2", 0)

    def open_half(accumulator_ub: Any) -> Any:
        state = Rings()
        allocate(state, accumulator_ub)
        return state

    @T.macro
    def finish(state: Any, turn: Any, d: Any, row: Any, col: Any, alpha: Any) -> None:
        if accumulate:
            T.ascend_wait_flag("V_MTE2", 0)
            bring_old(d, state.old_ub, row, col)
            T.ascend_set_flag("MTE2_V", 0)
            T.ascend_wait_flag("MTE2_V", 0)
        T.ascend_wait_flag("MTE3_V", 0)
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_V", UB_FULL + turn % l0c_stages)
        combine(state.accumulator, turn, state.old, state.result, alpha)
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", UB_EMPTY + turn % l0c_stages)
        if accumulate:
            T.ascend_set_flag("V_MTE2", 0)
        T.ascend_set_flag("V_MTE3", 0)
        T.ascend_wait_flag("V_MTE3", 0)
        store_half(state.result_ub, d, row, col)
        T.ascend_set_flag("MTE3_V", 0)

    @T.macro
    def close() -> None:
        T.ascend_wait_flag("MTE3_V", 0)
        if accumulate:
            T.ascend_wait_flag("V_MTE2", 0)

    return VectorEpilogue(hand_over, close_cube, open_half, finish, close)
