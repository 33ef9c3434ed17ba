"""hc_prenorm_gemm: x @ weight^T and the sums of squares of x, in one pass over x."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

import math
from typing import Annotated, Any

import msgspec

from kaas.kernel_library.choice import Candidate, report
from kaas.kernel_library.cube.cube_pipeline import (
    CORE_PAIR,
    CUBE_KERNEL_SOURCES,
    PASS_CONFIGS,
    SECOND_VECTOR_CORE,
    VECTOR_LANES,
    Rings,
    cube_pipeline,
    operand_copies,
    tile_origin,
)
from kaas.kernel_library.cube.gemm_fields import MAX_EXTENT, GemmDim
from kaas.kernel_library.cube.gemm_tiles import (
    L2_BYTES_PER_CYCLE,
    NOMINAL_EXTENT,
    TILE_OVERHEAD_CYCLES,
    GemmTiles,
)
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import DYNAMIC, KernelSpec, require_bool, require_dim, require_int, within
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

STEP = 256
"""Values of a row that pass UB at a time, four registers; a row is whole steps."""
MAD_K = 64
MAX_COLUMNS = 64
MAX_HIDDEN = 2**17
BLOCKS_M = (16, 32, 64, 128)
STAGES = 2
"""Of UB, of L1 and of the accumulator: all fit with the largest block."""
LANES_OF_BLOCK = 8
"""fp32 values in 32 bytes: a column of L1."""
CYCLES_PER_REGISTER = 12
"""Of the vector cores, for 64 values: widened, squared, added and stored."""

# Between the cores, one per slot of L1.
L1_FULL = 0
L1_EMPTY = 4


class HcPrenormGemmSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="hc_prenorm_gemm"
):
    """The projection before the mixing coefficients of hyper-connections, with what its norm needs.

    ``hidden`` is the width of x, all streams of a token side by side: a multiple of 256. ``columns`` is how
    many coefficients are projected: a multiple of 8, at most 64. ``hf32`` rounds the weights to HF32 for the
    product, which bf16 values are already; without it the product is fp32 throughout, at half the speed.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    tokens: GemmDim = "dynamic"
    hidden: Annotated[int, within(STEP, MAX_HIDDEN, multiple_of=STEP)]
    columns: Annotated[int, within(8, MAX_COLUMNS, multiple_of=8)] = 24
    hf32: bool = True

    def __post_init__(self) -> None:
        require_dim(self.tokens, "tokens", MAX_EXTENT)
        require_int(self.hidden, "hidden", STEP, MAX_HIDDEN, multiple_of=STEP)
        require_int(self.columns, "columns", 8, MAX_COLUMNS, multiple_of=8)
        require_bool(self.hf32, "hf32")


def parameters(spec: HcPrenormGemmSpec) -> tuple[Parameter, ...]:
    """What a call takes: x, weight, mixes and square_sum."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    return (
        Parameter(name="x", role="in", dtype="bf16", shape=(tokens, spec.hidden)),
        Parameter(name="weight", role="in", dtype="fp32", shape=(spec.columns, spec.hidden)),
        Parameter(name="mixes", role="out", dtype="fp32", shape=(tokens, spec.columns)),
        Parameter(name="square_sum", role="out", dtype="fp32", shape=(tokens,)),
    )


def tiles_of(spec: HcPrenormGemmSpec, target: Target) -> tuple[GemmTiles, dict[str, Any]]:
    """The block of tokens with the least modelled time, and why.

    A core takes whole rows, so that a sum never depends on how many cores there are.
    """
    candidates = {block: _modelled(spec, target, block) for block in BLOCKS_M}
    block_m = min(candidates, key=lambda block: (candidates[block].cycles, -block))
    tiles = GemmTiles(
        block_m=block_m,
        block_n=math.ceil(spec.columns / 16) * 16,
        block_k=STEP,
        mad_k=MAD_K,
        l1_stages=STAGES,
        l0c_stages=STAGES,
        window_m=1,
    )
    return tiles, report(candidates[block_m], list(candidates.values()))


def _modelled(spec: HcPrenormGemmSpec, target: Target, block_m: int) -> Candidate:
    tokens = NOMINAL_EXTENT if spec.tokens == DYNAMIC else int(spec.tokens)
    times = {
        "L2": (2 * block_m + 4 * spec.columns) * spec.hidden / L2_BYTES_PER_CYCLE,
        "vectors": block_m / 2 * spec.hidden / VECTOR_LANES * CYCLES_PER_REGISTER,
    }
    bound = max(times, key=times.__getitem__)
    waves = math.ceil(tokens / block_m / target.cube_cores)
    cycles = waves * (times[bound] + TILE_OVERHEAD_CYCLES)
    return Candidate(tiles={"block_m": block_m}, cycles=cycles, bound=bound)


def build(spec: HcPrenormGemmSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count.

    The vector cores read x, half a block's rows each: they add up squares and hand fp32 to the cube's L1.
    """
    tiles, why = tiles_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, tiles, target.cube_cores),
        choices={**msgspec.to_builtins(tiles), "why": why},
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: HcPrenormGemmSpec, tiles: GemmTiles, cores: int) -> Any:
    """The TileLang function of ``spec``: cube side and vector side walk the same blocks of tokens."""
    import tilelang.ascend.language as T

    entry = Entry("hc_prenorm_gemm", parameters(spec))
    tokens = entry.extent(parameters(spec)[0].shape[0])
    bm, bn, rows, steps = tiles.block_m, tiles.block_n, tiles.block_m // 2, spec.hidden // STEP
    blocks = T.ceildiv(tokens, bm)
    columns = STEP // LANES_OF_BLOCK
    # One block of room behind the rows of a column spreads the columns over the banks of UB.
    pitch = rows + 1
    row_of = tile_origin(spec.tokens)
    x_copies = operand_copies(tiles, bm, 4, k_major=False)
    weight_copies = operand_copies(tiles, bn, 4, k_major=False)

    @T.macro
    def turns_of(core: Any) -> Any:
        # Kept in a variable: TVM turns a loop whose extent is known to be 0 or 1 into its body.
        turns = T.alloc_var("int32")
        turns = T.truncdiv(blocks + cores - 1 - core, cores)
        return turns

    @T.macro
    def load(rings: Any, where: Any, step: Any) -> None:
        weight_copies.load(where[0], rings.b_l1[rings.l1_slot(), :, :], 0, step * STEP)

    @T.macro
    def feed(rings: Any, part: Any) -> None:
        x_copies.feed(rings.a_l1, rings.l1_slot(), rings.a_l0[rings.l0_slot(), :, :], part)
        weight_copies.feed(rings.b_l1, rings.l1_slot(), rings.b_l0[rings.l0_slot(), :, :], part)

    @T.macro
    def multiply(rings: Any, accumulator: Any, clear: Any) -> None:
        T.gemm(
            rings.a_l0[rings.l0_slot(), :, :],
            rings.b_l0[rings.l0_slot(), :, :],
            accumulator,
            transpose_B=True,
            clear_accum=clear,
        )

    @T.macro
    def acquire(rings: Any) -> None:
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE1", L1_FULL + rings.l1_slot())
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE1", SECOND_VECTOR_CORE + L1_FULL + rings.l1_slot())

    @T.macro
    def release(rings: Any) -> None:
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE1", L1_EMPTY + rings.l1_slot())
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE1", SECOND_VECTOR_CORE + L1_EMPTY + rings.l1_slot())

    pipeline = cube_pipeline(
        tiles,
        dtype_a="float32",
        dtype_b="float32",
        a_l1_tile=x_copies.l1_tile,
        b_l1_tile=weight_copies.l1_tile,
        load=load,
        feed=feed,
        multiply=multiply,
        acquire=acquire,
        release=release,
    )

    @T.macro
    def cube_side(call: Any, core: Any, x_l1: Any) -> None:
        rings = Rings()
        rings.keep(a_l1=x_l1)
        for slot in T.serial(STAGES):
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE1", L1_EMPTY + slot)
            T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE1", SECOND_VECTOR_CORE + L1_EMPTY + slot)
        pipeline.open(rings)
        if spec.hf32:
            T.set_hf32_mode("nearest_even")
        turns = turns_of(core)
        for turn in T.serial(turns):
            row = row_of(turn * cores + core, blocks, bm)
            pipeline.product(rings, turn, (call.weight,), steps)
            T.copy(rings.l0c[turn % STAGES, :, :], call.mixes[row : row + bm, 0:bn])
            pipeline.released(turn)
        pipeline.close()
        if spec.hf32:
            T.set_hf32_mode(None)

    @T.macro
    def widened(narrow: Any, wide: Any, stage: Any, row: Any, register: int) -> Any:
        """64 values of a row as fp32, stored to their eight columns of 32 bytes; returns their squares."""
        bits = T.simd.vld(narrow[stage, row * STEP + register * VECTOR_LANES], dist="UNPK_B16")
        value = T.simd.vcvt(bits, "float32", part=0)
        to = (register * VECTOR_LANES // LANES_OF_BLOCK * pitch + row) * LANES_OF_BLOCK
        T.simd.vsstb(value, wide[stage, to], pitch << 16)
        return T.simd.vmul(value, value)

    @T.macro
    def widen_and_square(narrow: Any, wide: Any, squares: Any, stage: Any) -> None:
        """The rows of a step, and their squares onto the sums, lane by lane."""
        with T.SimdVF():
            for row_16 in T.serial(T.uint16(rows)):
                row = T.cast(row_16, "int32")
                first = widened(narrow, wide, stage, row, 0)
                second = widened(narrow, wide, stage, row, 1)
                third = widened(narrow, wide, stage, row, 2)
                fourth = widened(narrow, wide, stage, row, 3)
                step = T.simd.vadd(T.simd.vadd(first, second), T.simd.vadd(third, fourth))
                total = T.simd.vadd(T.simd.vld(squares[row * VECTOR_LANES]), step)
                T.simd.vsts(squares[row * VECTOR_LANES], total)

    @T.macro
    def reduce_squares(squares: Any, sums: Any) -> None:
        with T.SimdVF():
            for row_16 in T.serial(T.uint16(rows)):
                row = T.cast(row_16, "int32")
                total = T.simd.vcadd(T.simd.vld(squares[row * VECTOR_LANES]))
                T.simd.vsts(sums[row], total, dist="ONEPT_B32")

    @T.macro
    def clear_squares(squares: Any) -> None:
        with T.SimdVF():
            for row_16 in T.serial(T.uint16(rows)):
                T.simd.vsts(
                    squares[T.cast(row_16, "int32") * VECTOR_LANES], T.simd.vdup(T.float32(0.0), "float32")
                )

    @T.macro
    def vector_side(call: Any, core: Any, vector_core: Any, x_l1: Any) -> None:
        narrow_ub = T.alloc_shared((STAGES, rows, STEP), "bfloat16")
        wide_ub = T.alloc_shared((STAGES, columns, pitch, LANES_OF_BLOCK), "float32")
        squares = T.alloc_shared((rows * VECTOR_LANES,), "float32")
        sums = T.alloc_shared((max(rows, LANES_OF_BLOCK),), "float32")
        narrow = T.view(narrow_ub, (STAGES, rows * STEP))
        wide = T.view(wide_ub, (STAGES, columns * pitch * LANES_OF_BLOCK))
        # Counts the steps of all blocks: the ring of L1 goes round with it.
        count = T.alloc_var("int32", init=0)
        for stage in T.serial(STAGES):
            T.ascend_set_flag("V_MTE2", stage)
            T.ascend_set_flag("MTE3_V", stage)
        T.ascend_set_flag("MTE3_V", STAGES)
        turns = turns_of(core)
        for turn in T.serial(turns):
            row = row_of(turn * cores + core, blocks, bm) + vector_core * rows
            clear_squares(squares)
            for step in T.serial(steps):
                T.ascend_wait_flag("V_MTE2", count % STAGES)
                T.copy(
                    call.x[row : row + rows, step * STEP : step * STEP + STEP],
                    narrow_ub[count % STAGES, :, :],
                )
                T.ascend_set_flag("MTE2_V", count % STAGES)
                T.ascend_wait_flag("MTE2_V", count % STAGES)
                T.ascend_wait_flag("MTE3_V", count % STAGES)
                widen_and_square(narrow, wide, squares, count % STAGES)
                T.ascend_set_flag("V_MTE2", count % STAGES)
                T.ascend_set_flag("V_MTE3", count % STAGES)
                T.ascend_wait_flag("V_MTE3", count % STAGES)
                T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE3", L1_EMPTY + count % STAGES)
                T.ascend_nd2nz_post_copy(
                    x_l1[count % STAGES, vector_core * rows, 0],
                    wide_ub[count % STAGES, 0, 0, 0],
                    rows,
                    STEP,
                    bm,
                    "float",
                )
                T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE3", L1_FULL + count % STAGES)
                T.ascend_set_flag("MTE3_V", count % STAGES)
                count += 1
            T.ascend_wait_flag("MTE3_V", STAGES)
            reduce_squares(squares, sums)
            T.ascend_set_flag("V_MTE3", STAGES)
            T.ascend_wait_flag("V_MTE3", STAGES)
            T.copy(sums[0:rows], call.square_sum[row : row + rows])
            T.ascend_set_flag("MTE3_V", STAGES)
        T.ascend_wait_flag("MTE3_V", STAGES)
        for stage in T.serial(STAGES):
            T.ascend_wait_flag("V_MTE2", stage)
            T.ascend_wait_flag("MTE3_V", stage)
        for slot in T.serial(STAGES):
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE3", L1_EMPTY + slot)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            x_l1 = T.alloc_l1((STAGES, bm, STEP), "float32")
            with T.Cube():
                cube_side(call, core, x_l1)
            with T.Vector() as vector_core:
                vector_side(call, core, vector_core, x_l1)

    return entry.prim_func(block)


PAGE = KernelPage(
    computes=(
        "For every token t: mixes[t,c] = sum over h of x[t,h] * weight[c,h], and square_sum[t] = sum over h "
        "of x[t,h]^2. Both sums are fp32, of whole rows on one core: the same on every part of the family. "
        "With `hf32` the weights are rounded to HF32 (nearest even) for the product; x is bf16 and needs no "
        "rounding."
    ),
    arguments={
        "x": "bf16 [tokens, hidden]: the streams of a token side by side",
        "weight": "fp32 [columns, hidden]",
        "mixes": "fp32 [tokens, columns]",
        "square_sum": "fp32 [tokens]",
    },
    tolerance=(
        "small integers to the last bit; random values within calc_diff 1e-8 of float64 with HF32, and 1e-12 "
        "without"
    ),
    facts=("https://github.com/deepseek-ai/DeepGEMM (tf32_hc_prenorm_gemm)",),
    serves=("deep_gemm.tf32_hc_prenorm_gemm",),
    examples=(HcPrenormGemmSpec(hidden=4 * 7168), HcPrenormGemmSpec(hidden=4 * 4096, hf32=False)),
)

FAMILY = Family(
    name="hc_prenorm_gemm",
    summary="hyper-connection projection in HF32 or fp32 with the sums of squares of its rows",
    spec_type=HcPrenormGemmSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=CUBE_KERNEL_SOURCES,
    page=PAGE,
)
