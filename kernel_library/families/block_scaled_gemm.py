"""block_scaled_gemm: D[M, N] = (alpha *) A @ B (+ D) of fp8 and fp4 operands with a scale for 32 values."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang programs below are a language of their own: their annotations are buffers, not types.

from typing import Any, Literal

import msgspec

from kaas.kernel_library.cube.cube_pipeline import (
    CUBE_KERNEL_SOURCES,
    PASS_CONFIGS,
    Rings,
    VectorEpilogue,
    cube_pipeline,
    operand_copies,
    tile_origin,
    tile_walk,
    vector_epilogue,
)
from kaas.kernel_library.cube.gemm_fields import MAX_EXTENT, GemmDim, GemmTile, require_multiple, require_tile
from kaas.kernel_library.cube.gemm_fields import QUANTISED_BLOCK as BLOCK
from kaas.kernel_library.cube.gemm_tiles import (
    GemmProblem,
    GemmTiles,
    effective_tiles,
    explain_tiles,
    require_fit,
)
from kaas.kernel_library.cube.quantised_epilogue import (
    QUANTISED_EPILOGUE_SOURCES,
    quantised_epilogue,
    widest_row_bytes,
)
from kaas.kernel_library.cube.scaled_operands import PAIR, SCALED_OPERAND_SOURCES, scaled_operands
from kaas.kernel_library.cube.widened_operand import (
    FACTOR,
    UB_BYTES_PER_VALUE,
    WIDENED_OPERAND_SOURCES,
    widened_operand,
)
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DTYPE_BYTES,
    DYNAMIC,
    KernelSpec,
    require_bool,
    require_dim,
    require_one_of,
)
from kaas.proto.dtypes import ELEMENT_TYPES
from kaas.proto.extents import Extent, divided
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

PAIRS_OF_DTYPES = (("e4m3", "e4m3"), ("e2m1", "e2m1"), ("e4m3", "e2m1"))
LEGAL_LAYOUTS = {
    ("e4m3", "e4m3"): ("nt", "nn", "tn", "tt"),
    # Two fp4 values share a byte along K: no copy of the hardware turns them.
    ("e2m1", "e2m1"): ("nt",),
    ("e4m3", "e2m1"): ("nt", "tt"),
}
STORED_AS = {"e4m3": "e4m3", "e2m1": "e2m1x2"}


class BlockScaledGemmSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="block_scaled_gemm"
):
    """Matrix product of block-scaled (MX) operands on one NPU.

    ``dtype_a`` and ``dtype_b`` are e4m3 both, e2m1 both, or e4m3 with e2m1. ``layout`` gives the stored
    shapes as for gemm; an e2m1 operand is stored with K along its rows. 32 consecutive K of a row share an
    e8m0 scale; ``k`` is a multiple of 32, dynamic or not. ``dtype_d`` e4m3 makes ``d`` block-scaled itself,
    with scales ``sfd`` for 32 consecutive N, and then ``n`` is a multiple of 32. ``accumulate`` adds the
    product to the D passed in; ``alpha`` adds an fp32 scalar argument that multiplies the product. ``tile``
    overrides the tile choice.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    m: GemmDim = "dynamic"
    n: GemmDim
    k: GemmDim
    dtype_a: Literal["e4m3", "e2m1"] = "e4m3"
    dtype_b: Literal["e4m3", "e2m1"] = "e4m3"
    dtype_d: Literal["bf16", "fp16", "fp32", "e4m3"] = "bf16"
    layout: Literal["nt", "nn", "tn", "tt"] = "nt"
    accumulate: bool = False
    alpha: bool = False
    tile: GemmTile | None = None

    def __post_init__(self) -> None:
        for field in ("m", "n", "k"):
            require_dim(getattr(self, field), field, MAX_EXTENT)
        require_one_of(self.dtype_a, "dtype_a", ("e4m3", "e2m1"))
        require_one_of(self.dtype_b, "dtype_b", [b for a, b in PAIRS_OF_DTYPES if a == self.dtype_a])
        require_one_of(self.dtype_d, "dtype_d", ("bf16", "fp16", "fp32", "e4m3"))
        require_one_of(self.layout, "layout", LEGAL_LAYOUTS[self.dtype_a, self.dtype_b])
        require_bool(self.accumulate, "accumulate")
        require_bool(self.alpha, "alpha")
        require_multiple(self.k, "k", BLOCK)
        if self.dtype_d == "e4m3":
            require_multiple(self.n, "n", BLOCK)
            require_one_of(self.accumulate, "accumulate", (False,))
        require_tile(self.tile)
        if self.tile is not None:
            for field, multiple in _tile_multiples(self).items():
                require_multiple(getattr(self.tile, field), f"tile.{field}", multiple)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile (or not the given one) fits ``target``'s buffers."""
        require_fit(problem_of(self), target, self.tile)


def _tile_multiples(spec: BlockScaledGemmSpec) -> dict[str, int]:
    """What the block extents are multiples of.

    A scale of the result covers 32 columns, and two of them are written as one. An operand of bytes is
    turned in squares of 32. Each vector core widens half of B's rows. A step along K is whole pairs.
    """
    whole_squares = spec.layout[1] == "n" or widens_b(spec)
    block_n = PAIR if spec.dtype_d == "e4m3" else BLOCK if whole_squares else 16
    return {
        "block_m": BLOCK if spec.layout[0] == "t" else 16,
        "block_n": block_n,
        "block_k": PAIR,
    }


def widens_b(spec: BlockScaledGemmSpec) -> bool:
    """Whether B becomes e4m3 on the vector cores: the cube takes operands of one width."""
    return spec.dtype_a != spec.dtype_b


def uses_vector_epilogue(spec: BlockScaledGemmSpec) -> bool:
    """Whether the result passes the vector cores.

    They apply ``alpha`` and what a widened operand lacks, quantise, and add D when it is narrower than the
    accumulator (see gemm).
    """
    adds_after_rounding = spec.accumulate and spec.dtype_d != "fp32"
    return spec.alpha or adds_after_rounding or spec.dtype_d == "e4m3" or widens_b(spec)


def problem_of(spec: BlockScaledGemmSpec) -> GemmProblem:
    """What tile choice needs to know of ``spec``."""
    m, n, k = (None if extent == DYNAMIC else int(extent) for extent in (spec.m, spec.n, spec.k))
    multiples = _tile_multiples(spec)
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        input_bytes=0.5 if spec.dtype_a == "e2m1" else 1,
        output_bytes=DTYPE_BYTES[spec.dtype_d],
        vector_epilogue=uses_vector_epilogue(spec),
        reads_output=spec.accumulate,
        m_multiple=multiples["block_m"],
        n_multiple=multiples["block_n"],
        k_multiple=PAIR,
        scaled=True,
        result_row_bytes=widest_row_bytes() if spec.dtype_d == "e4m3" else 0,
        staged_bytes=UB_BYTES_PER_VALUE if widens_b(spec) else 0.0,
    )


def build(spec: BlockScaledGemmSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count and buffer sizes.

    As gemm, with scales beside the operands on every ring. Raises :class:`DoesNotFit` if no tile fits.
    """
    problem = problem_of(spec)
    tiles = effective_tiles(problem, target, spec.tile)
    return BuiltKernel(
        prim_func=_program(spec, tiles, target.cube_cores),
        choices={
            **msgspec.to_builtins(tiles),
            "why": explain_tiles(problem, target, tiles, given=spec.tile is not None),
        },
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: BlockScaledGemmSpec) -> tuple[Parameter, ...]:
    """What a call takes: a, b, sfa, sfb, d, its scales sfd if it has any, and alpha if asked for.

    A dynamic K is called ``k``; where both operands are pairs of e2m1, their number is ``half_k``.
    """
    m, n = (_extent(spec, "m"), _extent(spec, "n"))
    whole: Extent
    half: Extent
    pairs: Extent
    if spec.k == DYNAMIC and spec.dtype_a == "e2m1":
        whole, half, pairs = _NO_EXTENT, "half_k", divided("half_k", PAIR // 2)
    else:
        whole = _extent(spec, "k")
        half, pairs = divided(whole, 2), divided(whole, PAIR)
    a_row, b_row = (half if dtype == "e2m1" else whole for dtype in (spec.dtype_a, spec.dtype_b))
    a_shape = (whole, m) if spec.layout[0] == "t" else (m, a_row)
    b_shape = (n, b_row) if spec.layout[1] == "t" else (whole, n)
    taken = [
        Parameter(name="a", role="in", dtype=STORED_AS[spec.dtype_a], shape=a_shape),
        Parameter(name="b", role="in", dtype=STORED_AS[spec.dtype_b], shape=b_shape),
        Parameter(name="sfa", role="in", dtype="e8m0x2", shape=(pairs, m)),
        Parameter(name="sfb", role="in", dtype="e8m0x2", shape=(pairs, n)),
        Parameter(name="d", role="inout" if spec.accumulate else "out", dtype=spec.dtype_d, shape=(m, n)),
    ]
    if spec.dtype_d == "e4m3":
        taken.append(Parameter(name="sfd", role="out", dtype="e8m0x2", shape=(divided(n, PAIR), m)))
    if spec.alpha:
        taken.append(Parameter(name="alpha", role="scalar", dtype="fp32"))
    return tuple(taken)


_NO_EXTENT = 0
"""Of a shape that is not used."""


def _extent(spec: BlockScaledGemmSpec, name: str) -> Extent:
    extent: Extent = getattr(spec, name)
    return name if extent == DYNAMIC else extent


def _epilogue(spec: BlockScaledGemmSpec, tiles: GemmTiles, columns: Any) -> VectorEpilogue:
    factor = FACTOR if widens_b(spec) else 1.0
    if spec.dtype_d == "e4m3":
        return quantised_epilogue(tiles, columns, factor=factor, with_alpha=spec.alpha)
    dtype_d = ELEMENT_TYPES[spec.dtype_d].tilelang
    return vector_epilogue(tiles, dtype_d, factor=factor, with_alpha=spec.alpha, accumulate=spec.accumulate)


def _program(spec: BlockScaledGemmSpec, tiles: GemmTiles, cores: int) -> Any:
    """The TileLang function of ``spec``: the parts of the cube pipeline, joined in ``block``."""
    import tilelang.ascend.language as T

    operand, dtype_d = ELEMENT_TYPES[STORED_AS[spec.dtype_a]], ELEMENT_TYPES[spec.dtype_d].tilelang
    entry = Entry("block_scaled_gemm", parameters(spec))
    m, n = entry.extent(_extent(spec, "m")), entry.extent(_extent(spec, "n"))
    if spec.k == DYNAMIC and spec.dtype_a == "e2m1":
        k = entry.extent("half_k") * 2
    else:
        k = entry.extent(_extent(spec, "k"))
    bm, bn, bk, l0c_stages = tiles.block_m, tiles.block_n, tiles.block_k, tiles.l0c_stages
    m_tiles, n_tiles = T.ceildiv(m, bm), T.ceildiv(n, bn)
    k_steps, step_pairs = T.ceildiv(k, bk), bk // PAIR
    through_vectors, widens = uses_vector_epilogue(spec), widens_b(spec)

    a_copies = operand_copies(tiles, bm, operand.bytes, k_major=spec.layout[0] == "t")
    b_copies = operand_copies(tiles, bn, operand.bytes, k_major=spec.layout[1] == "n")
    widened = widened_operand(tiles)
    scaled = scaled_operands(tiles, ragged=spec.k == DYNAMIC or int(spec.k) % bk != 0)
    epilogue = _epilogue(spec, tiles, n)
    walk = tile_walk(m_tiles, n_tiles, tiles.window_m, cores)
    row_of, col_of = tile_origin(spec.m), tile_origin(spec.n)

    @T.macro
    def load(rings: Any, where: Any, step: Any) -> None:
        call, row, col = where
        a_copies.load(call.a, rings.a_l1[rings.l1_slot(), :, :], row, step * bk)
        if not widens:
            b_copies.load(call.b, rings.b_l1[rings.l1_slot(), :, :], col, step * bk)
        pair = step * step_pairs
        scaled.load(rings, call.sfa, call.sfb, row, col, pair, T.ceildiv(k, PAIR) - pair)

    @T.macro
    def feed(rings: Any, part: Any) -> None:
        a_copies.feed(rings.a_l1, rings.l1_slot(), rings.a_l0[rings.l0_slot(), :, :], part)
        b_copies.feed(rings.b_l1, rings.l1_slot(), rings.b_l0[rings.l0_slot(), :, :], part)
        scaled.feed(rings, part)

    pipeline = cube_pipeline(
        tiles,
        dtype_a=operand.tilelang,
        dtype_b=operand.tilelang,
        a_l1_tile=a_copies.l1_tile,
        b_l1_tile=b_copies.l1_tile,
        load=load,
        feed=feed,
        multiply=scaled.multiply,
        allocate=scaled.allocate,
        parts_of=scaled.parts_of,
        acquire=widened.acquire if widens else None,
        release=widened.release if widens else None,
    )

    @T.macro
    def cube_side(call: Any, core: Any, accumulator_ub: Any, b_l1: Any) -> None:
        rings = Rings()
        if widens:
            rings.keep(b_l1=b_l1)
            widened.open_cube()
        pipeline.open(rings)
        if spec.accumulate and not through_vectors:
            T.set_atomic("add", dtype_d)
        turns = walk.turns_of(core)
        for turn in T.serial(turns):
            tile_row, tile_col = walk.place_of(turn * cores + core)
            row = row_of(tile_row, m_tiles, bm)
            col = col_of(tile_col, n_tiles, bn)
            pipeline.product(rings, turn, (call, row, col), k_steps)
            if through_vectors:
                epilogue.hand_over(rings, turn, accumulator_ub)
            else:
                T.copy(rings.l0c[turn % l0c_stages, :, :], call.d[row : row + bm, col : col + bn])
            pipeline.released(turn)
        pipeline.close()
        if through_vectors:
            epilogue.close_cube()

    @T.macro
    def vector_side(call: Any, core: Any, vector_core: Any, accumulator_ub: Any, b_l1: Any) -> None:
        state = epilogue.open(accumulator_ub)
        if widens:
            staged = widened.open()
        turns = walk.turns_of(core)
        for turn in T.serial(turns):
            tile_row, tile_col = walk.place_of(turn * cores + core)
            row = row_of(tile_row, m_tiles, bm) + vector_core * (bm // 2)
            col = col_of(tile_col, n_tiles, bn)
            if widens:
                for step in T.serial(k_steps):
                    widened.widen(staged, call.b, b_l1, vector_core, col, step * bk)
            d = (call.d, call.sfd) if spec.dtype_d == "e4m3" else call.d
            epilogue.finish(state, turn, d, row, col, call.alpha)
        epilogue.close()
        if widens:
            widened.close()

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            if through_vectors:
                accumulator_ub = T.alloc_shared((l0c_stages, bm // 2, bn), "float32")
                b_l1 = T.alloc_l1((tiles.l1_stages, bn, bk), operand.tilelang) if widens else None
                with T.Cube():
                    cube_side(call, core, accumulator_ub, b_l1)
                with T.Vector() as vector_core:
                    vector_side(call, core, vector_core, accumulator_ub, b_l1)
            else:
                cube_side(call, core, None, None)

    return entry.prim_func(block)


PAGE = KernelPage(
    computes=(
        "D[m,n] = (alpha *) sum over k of A[m,k] * B[k,n] (+ D[m,n]), where every operand's element is its "
        "stored value times `2^(scale - 127)` of its block: 32 consecutive K of one row of A, or of one "
        "column of B. Sums are fp32; the result is rounded once.\n\n"
        "With `dtype_d` e4m3 the fp32 result is quantised: 32 consecutive N of a row share the scale "
        "`2^ceil(log2(max(amax, 1e-4) / 448))`, and values are rounded to nearest even.\n\n"
        "An e2m1 B beside an e4m3 A is widened to e4m3 on the vector cores, without loss."
    ),
    arguments={
        "a": "e4m3 [M, K] (layouts n.) or [K, M] (t.), or e2m1 pairs [M, K/2]: the even K in the low nibble",
        "b": "e4m3 [N, K] (.t) or [K, N] (.n), or e2m1 pairs [N, K/2]",
        "sfa": "scale pairs of A: 16-bit words [ceil(K/64), M], the first 32 K in the low byte; the high "
        "byte of an odd tail is 0; scale 255 makes the sums NaN",
        "sfb": "scale pairs of B: [ceil(K/64), N], likewise",
        "d": "the result [M, N], row-major",
        "sfd": "scale pairs of an e4m3 result: [ceil(N/64), M], ready to be the next product's sfa",
        "alpha": "multiplies the product",
    },
    tolerance=(
        "small integers with power-of-two scales to the last bit; random values within calc_diff 1e-5 of the "
        "product of the dequantised operands, and of the product before quantisation within 1e-3 (e4m3), "
        "1e-2 (one e2m1 operand) and 2e-2 (two)"
    ),
    facts=(
        "https://github.com/deepseek-ai/DeepGEMM (fp8_fp4_gemm)",
        "https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf",
        "asc-devkit, docs/zh/api: asc_mmad_mx, asc_copy_l12l0a_mx",
    ),
    serves=(
        *(f"deep_gemm.fp8_fp4_gemm_{layout}" for layout in ("nt", "nn", "tn", "tt")),
        *(f"deep_gemm.fp8_gemm_{layout}" for layout in ("nt", "nn", "tn", "tt")),
    ),
    examples=(
        BlockScaledGemmSpec(n=7168, k=2048),
        BlockScaledGemmSpec(n=4096, k=7168, dtype_a="e2m1", dtype_b="e2m1"),
        BlockScaledGemmSpec(n=4096, k=7168, dtype_b="e2m1", alpha=True),
        BlockScaledGemmSpec(n=2048, k=7168, dtype_d="e4m3"),
    ),
)

FAMILY = Family(
    name="block_scaled_gemm",
    summary="matrix product of fp8 and fp4 operands with e8m0 scales for 32 values, fp32 accumulation",
    spec_type=BlockScaledGemmSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(
        *CUBE_KERNEL_SOURCES,
        *SCALED_OPERAND_SOURCES,
        *WIDENED_OPERAND_SOURCES,
        *QUANTISED_EPILOGUE_SOURCES,
    ),
    page=PAGE,
)
