"""k_grouped_gemm: one product per group of K, added to the group's D, fp32 accumulation."""

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
from kaas.kernel_library.cube.product_operands import ProductOperands
from kaas.kernel_library.cube.scaled_operands import PAIR
from kaas.kernel_library.cube.stacked_product import STACKED_PRODUCT_SOURCES, Place, stacked_product
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import DYNAMIC, KernelSpec, require_dim, require_one_of, within
from kaas.proto.extents import Extent, divided
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

NOMINAL_GROUPS = 8
"""What a dynamic number of groups is taken to be when tiles are chosen."""


class KGroupedGemmSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="k_grouped_gemm"
):
    """D[g] += A[rows of g]^T @ B[rows of g] for the groups g of rows that ``grouped_layout`` delimits.

    A[K,M], B[K,N], D[groups,M,N]. ``grouped_layout[g]`` is the row of A and B after group g's last; group g
    starts at the end of the one before, rounded up to 256, the first one at row 0. An empty group leaves its
    D alone. ``dtype_a`` is that of both operands; e4m3 ones are block-scaled: 32 consecutive rows of a
    column share an e8m0 scale. ``tile`` overrides the tile choice. The sum is rounded once, from fp32, to
    ``dtype_d``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    groups: Annotated[int, within(1, 4096)] | Literal["dynamic"] = "dynamic"
    m: Annotated[int, within(1, 2**14)] | Literal["dynamic"]
    n: Annotated[int, within(1, 2**14)] | Literal["dynamic"]
    k: GemmDim = "dynamic"
    dtype_a: Literal["bf16", "fp16", "e4m3"] = "bf16"
    dtype_d: Literal["bf16", "fp16", "fp32"] = "fp32"
    tile: GemmTile | None = None

    def __post_init__(self) -> None:
        require_dim(self.groups, "groups", 4096)
        require_dim(self.m, "m", 2**14)
        require_dim(self.n, "n", 2**14)
        require_dim(self.k, "k", MAX_EXTENT)
        require_one_of(self.dtype_a, "dtype_a", ("bf16", "fp16", "e4m3"))
        require_one_of(self.dtype_d, "dtype_d", ("bf16", "fp16", "fp32"))
        operands_of(self).require_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile (or not the given one) fits ``target``'s buffers."""
        require_fit(problem_of(self), target, self.tile)


def operands_of(spec: KGroupedGemmSpec) -> ProductOperands:
    """The operands of each group's product."""
    return ProductOperands(
        dtype_a=spec.dtype_a,
        dtype_b=spec.dtype_a,
        dtype_d=spec.dtype_d,
        a_k_major=True,
        b_k_major=True,
        accumulate=True,
    )


def problem_of(spec: KGroupedGemmSpec) -> GemmProblem:
    """What tile choice needs to know of ``spec``: a constant K counts as spread evenly over the groups."""
    groups = NOMINAL_GROUPS if spec.groups == DYNAMIC else int(spec.groups)
    m, n, k = (None if extent == DYNAMIC else int(extent) for extent in (spec.m, spec.n, spec.k))
    return operands_of(spec).problem(m, n, None if k is None else max(1, k // groups), groups)


def build(spec: KGroupedGemmSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count and buffer sizes.

    The tiles of all groups that are not empty form one sequence that the cores take in turn. Every core
    walks all groups and reads their ends itself. Raises :class:`DoesNotFit` if no tile fits.
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


def parameters(spec: KGroupedGemmSpec) -> tuple[Parameter, ...]:
    """What a call takes: a, b, the scales sfa and sfb of e4m3 ones, d, grouped_layout."""
    groups, m, n, k = (_extent(spec, name) for name in ("groups", "m", "n", "k"))
    # Without any K every group is empty, and all of D stays as it is.
    nothing = spec.k == DYNAMIC
    taken = [
        Parameter(name="a", role="in", dtype=spec.dtype_a, shape=(k, m), may_be_empty=nothing),
        Parameter(name="b", role="in", dtype=spec.dtype_a, shape=(k, n), may_be_empty=nothing),
    ]
    if operands_of(spec).scaled:
        for name, rows in (("sfa", m), ("sfb", n)):
            shape = (divided(k, PAIR), rows)
            taken.append(Parameter(name=name, role="in", dtype="e8m0x2", shape=shape, may_be_empty=nothing))
    taken.append(Parameter(name="d", role="inout", dtype=spec.dtype_d, shape=(groups, m, n)))
    taken.append(Parameter(name="grouped_layout", role="in", dtype="int32", shape=(groups,)))
    return tuple(taken)


def _extent(spec: KGroupedGemmSpec, name: str) -> Extent:
    extent: Extent = getattr(spec, name)
    return name if extent == DYNAMIC else extent


def _program(spec: KGroupedGemmSpec, tiles: GemmTiles, cores: int) -> Any:
    """The TileLang function of ``spec``."""
    import tilelang.ascend.language as T

    entry = Entry("k_grouped_gemm", parameters(spec))
    groups, m, n, k = (entry.extent(_extent(spec, name)) for name in ("groups", "m", "n", "k"))
    m_tiles, n_tiles = T.ceildiv(m, tiles.block_m), T.ceildiv(n, tiles.block_n)
    row_of, col_of = tile_origin(spec.m), tile_origin(spec.n)
    one_group = tile_walk(m_tiles, n_tiles, tiles.window_m, cores)
    reader = group_reader(k)

    @T.macro
    def walk(call: Any, core: Any, visit: Any) -> None:
        done = T.alloc_var("int32", init=0)
        mine = T.alloc_var("int32")
        mine = core
        turns = T.alloc_var("int32")
        k_steps = T.alloc_var("int32")
        span = Span()
        reader.open(span)
        for group in T.serial(groups):
            start, end = reader.advance(span, call.grouped_layout, group)
            k_steps = T.truncdiv(end - start + tiles.block_k - 1, tiles.block_k)
            if k_steps > 0:
                turns = one_group.turns_of(mine)
                for turn in T.serial(turns):
                    tile_row, tile_col = one_group.place_of(turn * cores + mine)
                    place = Place(
                        a=Head(call.a, end),
                        b=Head(call.b, end),
                        d=Slab(call.d, 0, group),
                        sfa=call.sfa,
                        sfb=call.sfb,
                        row=row_of(tile_row, m_tiles, tiles.block_m),
                        col=col_of(tile_col, n_tiles, tiles.block_n),
                        k_first=start,
                        k_length=end - start,
                        k_steps=k_steps,
                    )
                    visit(done, place)
                    done += 1
                # The first tile of the next group that is this core's in the sequence of all tiles.
                mine = T.truncmod(mine + cores - T.truncmod(m_tiles * n_tiles, cores), cores)

    return stacked_product(entry, tiles, cores, operands_of(spec), walk, columns=n, ragged=True)


PAGE = KernelPage(
    computes=(
        "The groups' rows lie one after the other in A and B, each group at a multiple of "
        f"{GROUP_ALIGNMENT} rows. With psum = `grouped_layout`, group g owns the rows\n\n"
        f"    roundup(psum[g-1], {GROUP_ALIGNMENT}) <= k < psum[g]        (psum[-1] = 0)\n\n"
        "and D[g] += sum over these k of A[k,:]^T * B[k,:], in fp32, rounded once. A group whose psum is at "
        "most its first row is empty and leaves its D alone. Rows of no group are not read. An end beyond K "
        "counts as K. An fp32 D is added to by the store; a narrower one passes the vector cores.\n\n"
        "An element of an e4m3 operand stands for its stored value times `2^(scale - 127)` of its block: 32 "
        "consecutive k of a column. Blocks count from the first row of A and B, so that a group's scales "
        "start at pair psum / 64 of its rounded start."
    ),
    arguments={
        "a": "[K, M], row-major",
        "b": "[K, N], row-major",
        "sfa": "scale pairs of A: 16-bit words [ceil(K/64), M], the first 32 k in the low byte",
        "sfb": "scale pairs of B: [ceil(K/64), N], likewise",
        "d": "[groups, M, N], row-major; added to",
        "grouped_layout": "the row after each group's last one",
    },
    tolerance=(
        "integers with power-of-two scales to the last bit; random values within calc_diff 1e-5 of the sum "
        "of the (dequantised) operands in float64"
    ),
    facts=("https://github.com/deepseek-ai/DeepGEMM (k-grouped contiguous layout with prefix sums)",),
    serves=(
        "deep_gemm.k_grouped_bf16_gemm_tn_contiguous",
        "deep_gemm.k_grouped_fp8_gemm_tn_contiguous",
        "deep_gemm.k_grouped_fp8_gemm_nt_contiguous",
    ),
    examples=(
        KGroupedGemmSpec(groups=8, m=4096, n=7168),
        KGroupedGemmSpec(groups=8, m=4096, n=7168, dtype_a="e4m3"),
    ),
)

FAMILY = Family(
    name="k_grouped_gemm",
    summary="matrix products over groups of K, added to a matrix per group, for weight gradients of experts",
    spec_type=KGroupedGemmSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*STACKED_PRODUCT_SOURCES, "kaas.kernel_library.cube.group_layout"),
    page=PAGE,
)
