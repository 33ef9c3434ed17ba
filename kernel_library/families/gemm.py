"""gemm: D[M, N] = (alpha *) A @ B (+ D) on the cube cores, fp32 accumulation."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang programs below are a language of their own: their annotations are buffers, not types.

from typing import Annotated, Any, Literal

import msgspec

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family
from kaas.kernel_library.gemm_tiles import GemmProblem, GemmTiles, choose_tiles, tiles_for_blocks
from kaas.kernel_library.spec import (
    DTYPE_BYTES,
    DYNAMIC,
    Dtype,
    KernelSpec,
    require_bool,
    require_dim,
    require_int,
    require_one_of,
    within,
)
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

DTYPES: tuple[Dtype, ...] = ("bf16", "fp16", "fp32")
"""Legal inputs, and legal outputs of each: the accumulator is fp32 and can be rounded to any of them."""

MAX_EXTENT = 2**22
"""Of a constant extent: 256 rows then span fewer than 2^31 elements, as TileLang's literals must."""

GemmDim = Annotated[int, within(1, MAX_EXTENT)] | Literal["dynamic"]


class GemmTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An explicit tile choice: output tile rows and columns, and the K step held in L1 (elements)."""

    block_m: Annotated[int, within(16, 256, multiple_of=16)]
    block_n: Annotated[int, within(16, 256, multiple_of=16)]
    block_k: Annotated[int, within(16, 1024, multiple_of=16)]

    def __post_init__(self) -> None:
        require_int(self.block_m, "tile.block_m", 16, 256, multiple_of=16)
        require_int(self.block_n, "tile.block_n", 16, 256, multiple_of=16)
        require_int(self.block_k, "tile.block_k", 16, 1024, multiple_of=16)


class GemmSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="gemm"):
    """Dense matrix product on one NPU.

    Layouts give the stored shapes: ``nt`` A[M,K] B[N,K]; ``nn`` A[M,K] B[K,N]; ``tn`` A[K,M] B[K,N];
    ``tt`` A[K,M] B[N,K]. D is always [M,N], row-major. ``accumulate`` adds the product to the D passed in;
    ``alpha`` adds an fp32 scalar argument that multiplies the product. ``tile`` overrides the tile choice.
    The result is rounded once, from fp32, to ``dtype_d``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    m: GemmDim = "dynamic"
    n: GemmDim
    k: GemmDim
    dtype_a: Dtype = "bf16"
    dtype_b: Dtype = "bf16"
    dtype_d: Dtype = "bf16"
    layout: Literal["nt", "nn", "tn", "tt"] = "nt"
    accumulate: bool = False
    alpha: bool = False
    tile: GemmTile | None = None

    def __post_init__(self) -> None:
        for field in ("m", "n", "k"):
            require_dim(getattr(self, field), field, MAX_EXTENT)
        for field in ("dtype_a", "dtype_b", "dtype_d"):
            require_one_of(getattr(self, field), field, DTYPES)
        if self.dtype_b != self.dtype_a:
            raise InvalidSpec(
                f"dtype_b is {self.dtype_b} but dtype_a is {self.dtype_a}; the cube takes equal input dtypes",
                field="dtype_b",
                legal=[self.dtype_a],
            )
        require_one_of(self.layout, "layout", ("nt", "nn", "tn", "tt"))
        require_bool(self.accumulate, "accumulate")
        require_bool(self.alpha, "alpha")
        if self.tile is not None and not isinstance(self.tile, GemmTile):
            raise InvalidSpec(
                "tile is not a kaas.GemmTile(block_m=..., block_n=..., block_k=...)",
                field="tile",
                legal="a GemmTile or null",
            )

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile (or not the given one) fits ``target``'s buffers."""
        tiles_of(self, target)


TILELANG_DTYPE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
VECTOR_LANES = 64
"""fp32 elements of one vector register."""

FRACTAL = 16
LEAST_ORDERED_FRACTALS = 10

# Flags between a cube core and its two vector cores, one per accumulator slot. The second vector core sees
# the cube core's flags 16 and up as its own 0 and up.
CORE_PAIR = 4
UB_EMPTY = 0
UB_FULL = 2
SECOND_VECTOR_CORE = 16

PASS_CONFIGS: dict[str, Any] = {
    # The program places every flag itself: no solver runs, and lowering takes a fraction of a second.
    "tl.enable_auto_schedule": False,
    # UB buffers live across iterations on several pipes, which TileLang's liveness analysis does not see.
    "tl.disable_shared_memory_reuse": True,
    # UB is written by the cube side (L0C to UB), which the check takes for a missing initialisation.
    "tl.disable_buffer_init_check": True,
}


def problem_of(spec: GemmSpec) -> GemmProblem:
    """What tile choice needs to know of ``spec``."""
    m, n, k = (None if extent == DYNAMIC else int(extent) for extent in (spec.m, spec.n, spec.k))
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        input_bytes=DTYPE_BYTES[spec.dtype_a],
        output_bytes=DTYPE_BYTES[spec.dtype_d],
        vector_epilogue=uses_vector_epilogue(spec),
        reads_output=spec.accumulate,
    )


def uses_vector_epilogue(spec: GemmSpec) -> bool:
    """Whether the result passes the vector cores.

    They apply ``alpha``, and they add D when D is narrower than the accumulator: an atomic store would
    round the product before the addition, so that the sum would be rounded twice. An fp32 D needs no rounding
    and is added to by the store itself; every element has one writer, so that every run gives the same bits.
    """
    return spec.alpha or (spec.accumulate and spec.dtype_d != "fp32")


def tiles_of(spec: GemmSpec, target: Target) -> GemmTiles:
    """The effective tiles: ``spec.tile`` completed, or the chosen ones. Raises :class:`DoesNotFit`."""
    problem = problem_of(spec)
    if spec.tile is None:
        return choose_tiles(problem, target)
    return tiles_for_blocks(problem, target, spec.tile.block_m, spec.tile.block_n, spec.tile.block_k)


def build(spec: GemmSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count and buffer sizes.

    One block per cube core walks its share of the output tiles. Inside a tile, global memory feeds a ring of
    L1 stages (MTE2), L1 feeds two L0A/L0B slots (MTE1), the cube accumulates in L0C (M), and the fixpipe
    (FIX) stores the accumulator or hands it to the two vector cores through UB. Every ring has a "full" and
    an "empty" flag per slot; "empty" flags are raised before the first tile and collected after the last.

    Raises :class:`DoesNotFit` if no tile fits.
    """
    tiles = tiles_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, tiles, target.cube_cores),
        choices=msgspec.to_builtins(tiles),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: GemmSpec) -> tuple[Parameter, ...]:
    """What a call takes: a, b, d and, if asked for, alpha."""
    m: Extent = "m" if spec.m == DYNAMIC else spec.m
    n: Extent = "n" if spec.n == DYNAMIC else spec.n
    k: Extent = "k" if spec.k == DYNAMIC else spec.k
    tensors = (
        Parameter(name="a", role="in", dtype=spec.dtype_a, shape=_a_shape(spec.layout, m, k)),
        Parameter(name="b", role="in", dtype=spec.dtype_b, shape=_b_shape(spec.layout, n, k)),
        Parameter(name="d", role="inout" if spec.accumulate else "out", dtype=spec.dtype_d, shape=(m, n)),
    )
    return (*tensors, Parameter(name="alpha", role="scalar", dtype="fp32")) if spec.alpha else tensors


def _a_shape(layout: str, m: Any, k: Any) -> tuple[Any, Any]:
    return (k, m) if layout[0] == "t" else (m, k)


def _b_shape(layout: str, n: Any, k: Any) -> tuple[Any, Any]:
    return (n, k) if layout[1] == "t" else (k, n)


def _program(spec: GemmSpec, tiles: GemmTiles, cores: int) -> Any:
    """The TileLang function of ``spec``: one macro per task, joined in ``block``."""
    import tilelang.ascend.language as T

    dtype, dtype_d = TILELANG_DTYPE[spec.dtype_a], TILELANG_DTYPE[spec.dtype_d]
    entry = Entry("gemm", parameters(spec))
    m, n, k = (
        entry.extent(name if extent == DYNAMIC else extent)
        for name, extent in zip("mnk", (spec.m, spec.n, spec.k), strict=True)
    )
    bm, bn, bk, mk = tiles.block_m, tiles.block_n, tiles.block_k, tiles.mad_k
    l1_stages, l0c_stages, window = tiles.l1_stages, tiles.l0c_stages, tiles.window_m
    m_tiles, n_tiles = T.ceildiv(m, bm), T.ceildiv(n, bn)
    # A dynamic K of zero still runs one step over zero-filled L1, so that D becomes zero.
    k_steps = T.max(T.ceildiv(k, bk), 1) if spec.k == DYNAMIC else -(-k // bk)
    # A 16-bit operand stored K-major is transposed between L1 and L0; the 32-bit path has no such transpose
    # and takes its own between global memory and L1.
    a_k_major, b_k_major = spec.layout[0] == "t", spec.layout[1] == "n"
    transpose_in_l0 = DTYPE_BYTES[spec.dtype_a] == 2
    a_l1_tile = (bk, bm) if a_k_major and transpose_in_l0 else (bm, bk)
    b_l1_tile = (bk, bn) if b_k_major and transpose_in_l0 else (bn, bk)
    # Short cube instructions on one accumulator may overtake each other: a barrier keeps them in order.
    needs_barrier = (bm // FRACTAL) * (bn // FRACTAL) < LEAST_ORDERED_FRACTALS
    vector_epilogue = uses_vector_epilogue(spec)
    half = bm // 2
    vectors = half * bn // VECTOR_LANES

    def load_operand(source: Any, l1_tile: Any, first: Any, extent: int, step: Any, k_major: bool) -> Any:
        """Global memory to L1; what lies outside the matrix becomes zero."""
        if not k_major:
            return T.copy(source[first : first + extent, step : step + bk], l1_tile)
        rows = source[step : step + bk, first : first + extent]
        return T.copy(rows, l1_tile) if transpose_in_l0 else T.copy(rows, l1_tile, transpose=True)

    def feed_l0(l1: Any, slot: Any, l0_tile: Any, part: Any, k_major: bool) -> Any:
        """L1 to L0A or L0B: one cube step of ``mk`` columns."""
        if k_major and transpose_in_l0:
            return T.copy(l1[slot, part * mk : part * mk + mk, :], l0_tile, transpose=True)
        return T.copy(l1[slot, :, part * mk : part * mk + mk], l0_tile)

    @T.macro
    def turns_of(core: Any) -> Any:
        """How many tiles this core owns, possibly none.

        Kept in a variable: TVM turns a loop whose extent is known to be 0 or 1 into its body.
        """
        turns = T.alloc_var("int32")
        turns = T.truncdiv(m_tiles * n_tiles + cores - 1 - core, cores)
        return turns

    @T.macro
    def origin_of(tile_index: Any, extent: Any, count: Any, block: int) -> Any:
        """First element of a tile row or column.

        A static extent gets its bounds stated: copies of whole tiles then need no clamps and zero fills.
        A dynamic one is kept in a variable: proofs about its formula would cost most of the lowering time.
        """
        if extent == DYNAMIC:
            start = T.alloc_var("int32")
            start = tile_index * block
        else:
            T.assume(tile_index >= 0)
            T.assume(tile_index < count)
            start = tile_index * block
        return start

    @T.macro
    def place_of(tile: Any) -> Any:
        """Tile row and column of a tile; ``window`` tile rows are walked together, column by column."""
        first = T.alloc_var("int32")
        rows = T.alloc_var("int32")
        rest = T.alloc_var("int32")
        first = T.truncdiv(tile, window * n_tiles) * window
        rows = T.min(m_tiles - first, window)
        rest = T.truncmod(tile, window * n_tiles)
        return first + T.truncmod(rest, rows), T.truncdiv(rest, rows)

    @T.macro
    def store_accumulator(l0c: Any, slot: Any, d: Any, row: Any, col: Any, accumulator_ub: Any) -> None:
        """Leave L0C through the fixpipe: rounded into global memory, or as fp32 halves into both UBs."""
        if vector_epilogue:
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", UB_EMPTY + slot)
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", SECOND_VECTOR_CORE + UB_EMPTY + slot)
            T.dual_copy(l0c[slot, :, :], accumulator_ub[slot, :, :])
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_FIX", UB_FULL + slot)
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_FIX", SECOND_VECTOR_CORE + UB_FULL + slot)
        else:
            T.copy(l0c[slot, :, :], d[row : row + bm, col : col + bn])

    @T.macro
    def cube_side(a: Any, b: Any, d: Any, core: Any, accumulator_ub: Any) -> None:
        a_l1 = T.alloc_l1((l1_stages, *a_l1_tile), dtype)
        b_l1 = T.alloc_l1((l1_stages, *b_l1_tile), dtype)
        a_l0 = T.alloc_l0a((2, bm, mk), dtype)
        b_l0 = T.alloc_l0b((2, bn, mk), dtype)
        l0c = T.alloc_l0c((l0c_stages, bm, bn), "float32")
        l1_turn = T.alloc_var("int32", init=0)
        l0_turn = T.alloc_var("int32", init=0)
        for slot in T.serial(l1_stages):
            T.ascend_set_flag("MTE1_MTE2", slot)
        for slot in T.serial(2):
            T.ascend_set_flag("M_MTE1", slot)
        for slot in T.serial(l0c_stages):
            T.ascend_set_flag("FIX_M", slot)
        if spec.accumulate and not vector_epilogue:
            T.set_atomic("add", dtype_d)
        turns = turns_of(core)
        for turn in T.serial(turns):
            tile_row, tile_col = place_of(turn * cores + core)
            row = origin_of(tile_row, spec.m, m_tiles, bm)
            col = origin_of(tile_col, spec.n, n_tiles, bn)
            T.ascend_wait_flag("FIX_M", turn % l0c_stages)
            for step in T.serial(k_steps):
                T.ascend_wait_flag("MTE1_MTE2", l1_turn % l1_stages)
                load_operand(a, a_l1[l1_turn % l1_stages, :, :], row, bm, step * bk, a_k_major)
                load_operand(b, b_l1[l1_turn % l1_stages, :, :], col, bn, step * bk, b_k_major)
                T.ascend_set_flag("MTE2_MTE1", l1_turn % l1_stages)
                T.ascend_wait_flag("MTE2_MTE1", l1_turn % l1_stages)
                for part in T.serial(bk // mk):
                    T.ascend_wait_flag("M_MTE1", l0_turn % 2)
                    feed_l0(a_l1, l1_turn % l1_stages, a_l0[l0_turn % 2, :, :], part, a_k_major)
                    feed_l0(b_l1, l1_turn % l1_stages, b_l0[l0_turn % 2, :, :], part, b_k_major)
                    T.ascend_set_flag("MTE1_M", l0_turn % 2)
                    T.ascend_wait_flag("MTE1_M", l0_turn % 2)
                    T.gemm(
                        a_l0[l0_turn % 2, :, :],
                        b_l0[l0_turn % 2, :, :],
                        l0c[turn % l0c_stages, :, :],
                        transpose_B=True,
                        clear_accum=T.And(step == 0, part == 0),
                    )
                    if needs_barrier:
                        T.ascend_pipe_barrier("PIPE_M")
                    T.ascend_set_flag("M_MTE1", l0_turn % 2)
                    l0_turn += 1
                T.ascend_set_flag("MTE1_MTE2", l1_turn % l1_stages)
                l1_turn += 1
            T.ascend_set_flag("M_FIX", turn % l0c_stages)
            T.ascend_wait_flag("M_FIX", turn % l0c_stages)
            store_accumulator(l0c, turn % l0c_stages, d, row, col, accumulator_ub)
            T.ascend_set_flag("FIX_M", turn % l0c_stages)
        for slot in T.serial(l1_stages):
            T.ascend_wait_flag("MTE1_MTE2", slot)
        for slot in T.serial(2):
            T.ascend_wait_flag("M_MTE1", slot)
        for slot in T.serial(l0c_stages):
            T.ascend_wait_flag("FIX_M", slot)
        if vector_epilogue:
            for slot in T.serial(l0c_stages):
                T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", UB_EMPTY + slot)
                T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", SECOND_VECTOR_CORE + UB_EMPTY + slot)

    @T.macro
    def finish_half(accumulator: Any, slot: Any, old: Any, result: Any, alpha: Any) -> None:
        """result = round(alpha * accumulator + old), element by element over one vector core's half tile."""
        with T.SimdVF():
            for vector in T.serial(T.uint16(vectors)):
                at = T.cast(vector, "int32") * VECTOR_LANES
                value = T.simd.vld(accumulator[slot, at])
                if spec.alpha:
                    value = T.simd.vmuls(value, alpha)
                if spec.accumulate and dtype_d == "float32":
                    value = T.simd.vadd(value, T.simd.vld(old[at]))
                elif spec.accumulate:
                    narrow = T.simd.vld(old[at], dist="UNPK_B16")
                    value = T.simd.vadd(value, T.simd.vcvt(narrow, "float32", part=0))
                if dtype_d == "float32":
                    T.simd.vsts(result[at], value)
                else:
                    # Not saturating: overflow becomes infinity and NaN stays NaN, as on the host.
                    T.simd.vsts(result[at], T.simd.vcvt(value, dtype_d, sat=False, part=0), dist="PK_B32")

    @T.macro
    def vector_side(d: Any, core: Any, vector_core: Any, accumulator_ub: Any, alpha: Any) -> None:
        result_ub = T.alloc_shared((half, bn), dtype_d)
        result = T.view(result_ub, (half * bn,))
        accumulator = T.view(accumulator_ub, (l0c_stages, half * bn))
        old_ub = T.alloc_shared((half, bn), dtype_d) if spec.accumulate else result_ub
        old = T.view(old_ub, (half * bn,))
        for slot in T.serial(l0c_stages):
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", UB_EMPTY + slot)
        T.ascend_set_flag("MTE3_V", 0)
        if spec.accumulate:
            T.ascend_set_flag("V_MTE2", 0)
        turns = turns_of(core)
        for turn in T.serial(turns):
            tile_row, tile_col = place_of(turn * cores + core)
            row = origin_of(tile_row, spec.m, m_tiles, bm) + vector_core * half
            col = origin_of(tile_col, spec.n, n_tiles, bn)
            if spec.accumulate:
                T.ascend_wait_flag("V_MTE2", 0)
                T.copy(d[row : row + half, col : col + bn], old_ub)
                T.ascend_set_flag("MTE2_V", 0)
                T.ascend_wait_flag("MTE2_V", 0)
            T.ascend_wait_flag("MTE3_V", 0)
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_V", UB_FULL + turn % l0c_stages)
            finish_half(accumulator, turn % l0c_stages, old, result, alpha)
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_V", UB_EMPTY + turn % l0c_stages)
            if spec.accumulate:
                T.ascend_set_flag("V_MTE2", 0)
            T.ascend_set_flag("V_MTE3", 0)
            T.ascend_wait_flag("V_MTE3", 0)
            T.copy(result_ub, d[row : row + half, col : col + bn])
            T.ascend_set_flag("MTE3_V", 0)
        T.ascend_wait_flag("MTE3_V", 0)
        if spec.accumulate:
            T.ascend_wait_flag("V_MTE2", 0)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            if vector_epilogue:
                accumulator_ub = T.alloc_shared((l0c_stages, half, bn), "float32")
                with T.Cube():
                    cube_side(call.a, call.b, call.d, core, accumulator_ub)
                with T.Vector() as vector_core:
                    vector_side(call.d, core, vector_core, accumulator_ub, call.alpha)
            else:
                cube_side(call.a, call.b, call.d, core, None)

    return entry.prim_func(block)


FAMILY = Family(
    name="gemm",
    summary="dense matrix product, bf16 / fp16 / fp32, any layout, fp32 accumulation",
    spec_type=GemmSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=("kaas.kernel_library.entry", "kaas.kernel_library.gemm_tiles"),
)
