"""grouped_gemm: rows in groups, each multiplied by its group's matrix, fp32 accumulation."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

import msgspec

from kaas.kernel_library.cube.cube_pipeline import PASS_CONFIGS, tile_origin, tile_walk
from kaas.kernel_library.cube.gemm_fields import MAX_EXTENT, GemmDim, GemmTile
from kaas.kernel_library.cube.gemm_tiles import (
    GemmProblem,
    GemmTiles,
    effective_tiles,
    explain_tiles,
    require_fit,
)
from kaas.kernel_library.cube.group_layout import GROUP_ALIGNMENT, Span, group_reader
from kaas.kernel_library.cube.matrix_views import Head, Slab
from kaas.kernel_library.cube.product_operands import ProductOperands, require_whole_blocks
from kaas.kernel_library.cube.scaled_operands import PAIR
from kaas.kernel_library.cube.stacked_product import STACKED_PRODUCT_SOURCES, Place, stacked_product
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import DYNAMIC, KernelSpec, require_dim, require_one_of, within
from kaas.proto.extents import Extent, divided
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

LEGAL_B = {"bf16": ("bf16",), "fp16": ("fp16",), "e4m3": ("e4m3", "e2m1"), "e2m1": ("e2m1",)}
"""The dtypes of B that go with each of A's."""
NOMINAL_GROUPS = 8
"""What a dynamic number of groups is taken to be when tiles are chosen."""


class GroupedGemmSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="grouped_gemm"):
    """D[rows of g] = A[rows of g] @ B[g] for the groups g that ``grouped_layout`` delimits.

    ``grouped_layout[g]`` is the row after group g's last; group g starts at the end of the one before,
    rounded up to 256, the first one at row 0. ``nt`` B[groups,N,K]; ``nn`` B[groups,K,N]; A[M,K] and D[M,N].
    ``dtype_a`` and ``dtype_b`` are bf16 both, fp16 both, or block-scaled: e4m3 both, e2m1 both, or e4m3 with
    e2m1. An e2m1 B is ``nt``. 32 consecutive K of a block-scaled row share an e8m0 scale; ``k`` is then a
    multiple of 32, dynamic or not. ``tile`` overrides the tile choice. The result is rounded once, from
    fp32, to ``dtype_d``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    groups: Annotated[int, within(1, 4096)] | Literal["dynamic"] = "dynamic"
    m: GemmDim = "dynamic"
    n: Annotated[int, within(1, 2**16)] | Literal["dynamic"]
    k: Annotated[int, within(1, 2**14)] | Literal["dynamic"]
    dtype_a: Literal["bf16", "fp16", "e4m3", "e2m1"] = "bf16"
    dtype_b: Literal["bf16", "fp16", "e4m3", "e2m1"] = "bf16"
    dtype_d: Literal["bf16", "fp16", "fp32"] = "bf16"
    layout: Literal["nt", "nn"] = "nt"
    tile: GemmTile | None = None

    def __post_init__(self) -> None:
        require_dim(self.groups, "groups", 4096)
        require_dim(self.m, "m", MAX_EXTENT)
        require_dim(self.n, "n", 2**16)
        require_dim(self.k, "k", 2**14)
        require_one_of(self.dtype_a, "dtype_a", tuple(LEGAL_B))
        require_one_of(self.dtype_b, "dtype_b", LEGAL_B[self.dtype_a])
        require_one_of(self.dtype_d, "dtype_d", ("bf16", "fp16", "fp32"))
        # Two e2m1 values share a byte along K: no copy of the hardware turns them.
        require_one_of(self.layout, "layout", ("nt",) if self.dtype_b == "e2m1" else ("nt", "nn"))
        if operands_of(self).scaled:
            require_whole_blocks(self.k, "k")
        operands_of(self).require_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile (or not the given one) fits ``target``'s buffers."""
        require_fit(problem_of(self), target, self.tile)


def operands_of(spec: GroupedGemmSpec) -> ProductOperands:
    """The operands of each group's product."""
    return ProductOperands(
        dtype_a=spec.dtype_a,
        dtype_b=spec.dtype_b,
        dtype_d=spec.dtype_d,
        a_k_major=False,
        b_k_major=spec.layout == "nn",
        accumulate=False,
    )


def problem_of(spec: GroupedGemmSpec) -> GemmProblem:
    """What tile choice needs to know of ``spec``: constant rows count as spread evenly over the groups."""
    groups = NOMINAL_GROUPS if spec.groups == DYNAMIC else int(spec.groups)
    m, n, k = (None if extent == DYNAMIC else int(extent) for extent in (spec.m, spec.n, spec.k))
    return operands_of(spec).problem(None if m is None else max(1, m // groups), n, k, groups)


def build(spec: GroupedGemmSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count and buffer sizes.

    The tiles of all groups form one sequence that the cores take in turn. Every core walks all groups and
    reads their ends itself. Raises :class:`DoesNotFit` if no tile fits.
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


def parameters(spec: GroupedGemmSpec) -> tuple[Parameter, ...]:
    """What a call takes: a, b, the scales sfa and sfb of block-scaled ones, d, grouped_layout.

    A dynamic K is called ``k``; where both operands are pairs of e2m1, their number is ``half_k``.
    """
    operands = operands_of(spec)
    groups, m, n = (_extent(spec, name) for name in ("groups", "m", "n"))
    whole, half, pairs = _k_extents(spec)
    a_row, b_row = (half if dtype == "e2m1" else whole for dtype in (spec.dtype_a, spec.dtype_b))
    b_shape = (groups, n, b_row) if spec.layout == "nt" else (groups, whole, n)
    taken = [
        Parameter(name="a", role="in", dtype=operands.stored_a, shape=(m, a_row)),
        Parameter(name="b", role="in", dtype=operands.stored_b, shape=b_shape),
    ]
    if operands.scaled:
        taken.append(Parameter(name="sfa", role="in", dtype="e8m0x2", shape=(pairs, m)))
        taken.append(Parameter(name="sfb", role="in", dtype="e8m0x2", shape=(groups, pairs, n)))
    # Rows of no group keep what they hold.
    taken.append(Parameter(name="d", role="inout", dtype=spec.dtype_d, shape=(m, n)))
    taken.append(Parameter(name="grouped_layout", role="in", dtype="int32", shape=(groups,)))
    return tuple(taken)


def _k_extents(spec: GroupedGemmSpec) -> tuple[Extent, Extent, Extent]:
    """K, the pairs of e2m1 values and the pairs of scales along it; K is not used for two e2m1 operands."""
    if spec.k == DYNAMIC and spec.dtype_a == "e2m1":
        return "half_k", "half_k", divided("half_k", PAIR // 2)
    whole = _extent(spec, "k")
    return whole, divided(whole, 2), divided(whole, PAIR)


def _extent(spec: GroupedGemmSpec, name: str) -> Extent:
    extent: Extent = getattr(spec, name)
    return name if extent == DYNAMIC else extent


def _program(spec: GroupedGemmSpec, tiles: GemmTiles, cores: int) -> Any:
    """The TileLang function of ``spec``."""
    import tilelang.ascend.language as T

    entry = Entry("grouped_gemm", parameters(spec))
    groups, m, n = (entry.extent(_extent(spec, name)) for name in ("groups", "m", "n"))
    k = entry.extent(_k_extents(spec)[0])
    if spec.k == DYNAMIC and spec.dtype_a == "e2m1":
        k = k * 2
    n_tiles = T.ceildiv(n, tiles.block_n)
    # A dynamic K of zero still runs one step over zero-filled L1, so that D becomes zero.
    k_steps = T.max(T.ceildiv(k, tiles.block_k), 1) if spec.k == DYNAMIC else -(-k // tiles.block_k)
    col_of = tile_origin(spec.n)
    reader = group_reader(m)

    @T.macro
    def walk(call: Any, core: Any, visit: Any) -> None:
        done = T.alloc_var("int32", init=0)
        mine = T.alloc_var("int32")
        mine = core
        turns = T.alloc_var("int32")
        m_tiles = T.alloc_var("int32")
        row = T.alloc_var("int32")
        span = Span()
        reader.open(span)
        for group in T.serial(groups):
            start, end = reader.advance(span, call.grouped_layout, group)
            m_tiles = T.truncdiv(end - start + tiles.block_m - 1, tiles.block_m)
            one_group = tile_walk(m_tiles, n_tiles, tiles.window_m, cores)
            turns = one_group.turns_of(mine)
            for turn in T.serial(turns):
                tile_row, tile_col = one_group.place_of(turn * cores + mine)
                row = start + tile_row * tiles.block_m
                place = Place(
                    a=Head(call.a, end),
                    b=Slab(call.b, 0, group),
                    d=Head(call.d, end),
                    sfa=call.sfa,
                    sfb=Slab(call.sfb, 0, group),
                    row=row,
                    col=col_of(tile_col, n_tiles, tiles.block_n),
                    k_first=0,
                    k_length=k,
                    k_steps=k_steps,
                )
                visit(done, place)
                done += 1
            # The first tile of the next group that is this core's in the sequence of all tiles.
            mine = T.truncmod(mine + cores - T.truncmod(m_tiles * n_tiles, cores), cores)

    return stacked_product(
        entry,
        tiles,
        cores,
        operands_of(spec),
        walk,
        columns=n,
        ragged=spec.k == DYNAMIC or int(spec.k) % tiles.block_k != 0,
    )


PAGE = KernelPage(
    computes=(
        "The groups' rows lie one after the other in A and D, each group at a multiple of "
        f"{GROUP_ALIGNMENT} rows. With psum = `grouped_layout`, group g owns the rows\n\n"
        f"    roundup(psum[g-1], {GROUP_ALIGNMENT}) <= row < psum[g]        (psum[-1] = 0)\n\n"
        "and D[row] = A[row] @ B[g], summed in fp32 and rounded once. Groups may be empty: their psum is "
        "then at most their first row. Rows that belong to no group are neither read nor written: D keeps "
        "what it holds there. An end beyond M counts as M.\n\n"
        "An element of a block-scaled operand stands for its stored value times `2^(scale - 127)` of its "
        "block: 32 consecutive K of a row of A, or of a column of B. An e2m1 B beside an e4m3 A is widened "
        "to e4m3 on the vector cores, without loss."
    ),
    arguments={
        "a": "[M, K], row-major; e2m1 as pairs [M, K/2], the even K in the low nibble",
        "b": "[groups, N, K] (`nt`) or [groups, K, N] (`nn`), row-major; e2m1 as pairs [groups, N, K/2]",
        "sfa": "scale pairs of A: 16-bit words [ceil(K/64), M], the first 32 K in the low byte; the high "
        "byte of an odd tail is 0",
        "sfb": "scale pairs of B: [groups, ceil(K/64), N], likewise",
        "d": "[M, N], row-major; only rows of groups are written",
        "grouped_layout": "the row after each group's last one",
    },
    tolerance=(
        "integers with power-of-two scales to the last bit; random values within calc_diff 1e-5 of the "
        "product of the (dequantised) operands in float64"
    ),
    facts=("https://github.com/deepseek-ai/DeepGEMM (m-grouped contiguous layout with prefix sums)",),
    serves=(
        "deep_gemm.m_grouped_bf16_gemm_nt_contiguous",
        "deep_gemm.m_grouped_bf16_gemm_nn_contiguous",
        "deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous",
        "deep_gemm.m_grouped_fp8_fp4_gemm_nn_contiguous",
        "deep_gemm.m_grouped_fp8_gemm_nt_contiguous",
        "deep_gemm.m_grouped_fp8_gemm_nn_contiguous",
    ),
    examples=(
        GroupedGemmSpec(groups=8, n=4096, k=7168),
        GroupedGemmSpec(n=7168, k=2048, layout="nn", dtype_d="fp32"),
        GroupedGemmSpec(groups=8, n=4096, k=7168, dtype_a="e4m3", dtype_b="e2m1"),
    ),
)

FAMILY = Family(
    name="grouped_gemm",
    summary="matrix products of row groups with one matrix per group, for mixtures of experts",
    spec_type=GroupedGemmSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*STACKED_PRODUCT_SOURCES, "kaas.kernel_library.cube.group_layout"),
    page=PAGE,
)
