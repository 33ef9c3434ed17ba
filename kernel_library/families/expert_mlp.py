"""expert_mlp: both products of each expert's MLP and the activation between them, in one launch."""

from typing import Annotated, Literal

import msgspec

from kaas.kernel_library.cube.cube_pipeline import PASS_CONFIGS
from kaas.kernel_library.cube.expert_mlp_program import EXPERT_MLP_SOURCES, expert_mlp_program
from kaas.kernel_library.cube.gated_epilogue import GATED, SCRATCH_ROW_BYTES, WIDTH
from kaas.kernel_library.cube.gemm_fields import MAX_EXTENT, GemmDim, GemmTile, require_multiple, require_tile
from kaas.kernel_library.cube.gemm_tiles import (
    GemmProblem,
    GemmTiles,
    choose_tiles,
    explain_tiles,
    tiles_for_blocks,
)
from kaas.kernel_library.cube.group_layout import GROUP_ALIGNMENT
from kaas.kernel_library.cube.scaled_operands import PAIR
from kaas.kernel_library.cube.widened_operand import UB_BYTES_PER_VALUE
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import DYNAMIC, KernelSpec, require_dim, require_int, require_one_of, within
from kaas.kernel_library.vector.gated_activation import Clamp, require_clamp
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_WIDTH = 2**14
NOMINAL_GROUPS = 8
"""What a dynamic number of groups is taken to be when tiles are chosen."""


class ExpertMlpSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="expert_mlp"):
    """y[rows of g] = (silu(gate) * up * weights) @ W2[g]^T with gate, up = x[rows of g] @ W1[g]^T.

    ``grouped_layout[g]`` is the row after group g's last; group g starts at the end of the one before,
    rounded up to 256, the first one at row 0. x [m, hidden] is e4m3, W1 [groups, 2*intermediate, hidden] and
    W2 [groups, hidden, intermediate] are ``dtype_w``; 32 consecutive values of a row share an e8m0 scale. The
    activations are quantised to e4m3 in the same way and written to h, y is bf16. ``clamp`` cuts gates off
    above it and ups on both sides. ``hidden`` and ``intermediate`` are multiples of 64, the latter of
    128 for e4m3 weights. ``tile`` overrides the tile choice of both products; its block_n is 256 and its
    block_k a multiple of 64.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    groups: Annotated[int, within(1, 4096)] | Literal["dynamic"] = "dynamic"
    m: GemmDim = "dynamic"
    hidden: Annotated[int, within(PAIR, MAX_WIDTH, multiple_of=PAIR)]
    intermediate: Annotated[int, within(PAIR, MAX_WIDTH, multiple_of=PAIR)]
    dtype_w: Literal["e2m1", "e4m3"] = "e2m1"
    clamp: Clamp = None
    tile: GemmTile | None = None

    def __post_init__(self) -> None:
        require_dim(self.groups, "groups", 4096)
        require_dim(self.m, "m", MAX_EXTENT)
        require_int(self.hidden, "hidden", PAIR, MAX_WIDTH, multiple_of=PAIR)
        require_int(self.intermediate, "intermediate", PAIR, MAX_WIDTH, multiple_of=PAIR)
        require_one_of(self.dtype_w, "dtype_w", ("e2m1", "e4m3"))
        if self.dtype_w == "e4m3":
            # Gates and ups go straight into two halves of a tile, of which only whole ones can be filled.
            require_multiple(self.intermediate, "intermediate", GATED)
        require_clamp(self.clamp)
        require_tile(self.tile)
        if self.tile is not None:
            if self.tile.block_n != WIDTH:
                raise InvalidSpec(
                    f"tile.block_n is {self.tile.block_n}; a tile has 128 gates and their ups: {WIDTH}",
                    field="tile.block_n",
                    legal=[WIDTH],
                )
            require_multiple(self.tile.block_k, "tile.block_k", PAIR)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile (or not the given one) fits ``target``'s buffers."""
        tiles_of(self, target)


def problem_of(spec: ExpertMlpSpec) -> GemmProblem:
    """What tile choice needs to know: the first product, which is two thirds of the work.

    Constant rows count as spread evenly over the groups.
    """
    groups = NOMINAL_GROUPS if spec.groups == DYNAMIC else int(spec.groups)
    return GemmProblem(
        m=None if spec.m == DYNAMIC else max(1, int(spec.m) // groups),
        n=2 * spec.intermediate,
        k=spec.hidden,
        input_bytes=1,
        output_bytes=2,
        vector_epilogue=True,
        reads_output=False,
        matrices=groups,
        n_multiple=WIDTH,
        k_multiple=PAIR,
        scaled=True,
        result_row_bytes=SCRATCH_ROW_BYTES,
        staged_bytes=UB_BYTES_PER_VALUE if spec.dtype_w == "e2m1" else 0.0,
    )


def tiles_of(spec: ExpertMlpSpec, target: Target) -> GemmTiles:
    """The effective tiles: ``spec.tile`` completed, or the chosen ones. Raises :class:`DoesNotFit`."""
    problem = problem_of(spec)
    if spec.tile is None:
        return choose_tiles(problem, target)
    return tiles_for_blocks(problem, target, spec.tile.block_m, spec.tile.block_n, spec.tile.block_k)


def build(spec: ExpertMlpSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count and buffer sizes.

    Raises :class:`DoesNotFit` if no tile fits.
    """
    tiles = tiles_of(spec, target)
    return BuiltKernel(
        prim_func=expert_mlp_program(
            Entry("expert_mlp", parameters(spec)),
            tiles,
            target.cube_cores,
            groups=_extent(spec.groups, "groups"),
            m=_extent(spec.m, "m"),
            hidden=spec.hidden,
            intermediate=spec.intermediate,
            widens=spec.dtype_w == "e2m1",
            clamp=spec.clamp,
        ),
        choices={
            **msgspec.to_builtins(tiles),
            "why": explain_tiles(problem_of(spec), target, tiles, given=spec.tile is not None),
        },
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: ExpertMlpSpec) -> tuple[Parameter, ...]:
    """What a call takes; rows of no group keep what they hold in all that is written."""
    groups, m = _extent(spec.groups, "groups"), _extent(spec.m, "m")
    hidden, inner = spec.hidden, spec.intermediate
    stored, packed = ("e2m1x2", 2) if spec.dtype_w == "e2m1" else ("e4m3", 1)
    return (
        Parameter(name="x", role="in", dtype="e4m3", shape=(m, hidden)),
        Parameter(name="x_scales", role="in", dtype="e8m0x2", shape=(hidden // PAIR, m)),
        Parameter(name="w1", role="in", dtype=stored, shape=(groups, 2 * inner, hidden // packed)),
        Parameter(name="w1_scales", role="in", dtype="e8m0x2", shape=(groups, hidden // PAIR, 2 * inner)),
        Parameter(name="w2", role="in", dtype=stored, shape=(groups, hidden, inner // packed)),
        Parameter(name="w2_scales", role="in", dtype="e8m0x2", shape=(groups, inner // PAIR, hidden)),
        Parameter(name="weights", role="in", dtype="fp32", shape=(m,)),
        Parameter(name="grouped_layout", role="in", dtype="int32", shape=(groups,)),
        Parameter(name="h", role="inout", dtype="e4m3", shape=(m, inner)),
        Parameter(name="h_scales", role="inout", dtype="e8m0x2", shape=(inner // PAIR, m)),
        Parameter(name="y", role="inout", dtype="bf16", shape=(m, hidden)),
    )


def _extent(extent: int | str, name: str) -> Extent:
    return name if extent == DYNAMIC else extent


PAGE = KernelPage(
    computes=f"""
The groups' rows lie one after the other, each group at a multiple of {GROUP_ALIGNMENT} rows. With psum =
`grouped_layout`, group g owns the rows

    roundup(psum[g-1], {GROUP_ALIGNMENT}) <= row < psum[g]        (psum[-1] = 0)

and for each of them

    gate, up = x[row] @ W1[g]^T, the first and the last `intermediate` columns
    h[row]   = silu(gate) * up * weights[row], quantised to e4m3 in blocks of 32
    y[row]   = h[row] @ W2[g]^T

with fp32 sums. `silu(z) = z / (1 + exp(-z))`; with `clamp` = c the gate is cut off above c and up to -c..c
before that. The activation is fp32 until it is quantised, by the rule of the cast family with scales rounded
up to powers of two: it is what grouped_gemm, swiglu and grouped_gemm in a row compute. Rows that belong to no
group are neither read nor written. Groups may be empty; an end beyond m counts as m.

*One launch.* The tiles of the first product of all groups are one sequence that the cores take in turn, those
of the second product another. Between them is a barrier of all cores: every activation is in global memory
before any is read. A tile of the first product multiplies with 128 rows of gates and the 128 rows of ups of
the same columns, so that weights lie as they are: no interleaving, no transposed scales. e4m3 weights need
an `intermediate` that is a multiple of 128. The barrier needs all blocks, one per cube core, on the device
at once.

*Workspace.* `h` and `h_scales` are the caller's. They are results, too: what the second product was
computed from.

*Not part of it.* Upstream's kernel also moves rows between ranks, before and after. Here rows come sorted
by expert and stay so; expand_to_fused and reduce_fused are the local halves of that.
""",
    arguments={
        "x": "[m, hidden], row-major",
        "x_scales": "scale pairs of x: 16-bit words [hidden/64, m], the first 32 columns in the low byte",
        "w1": "[groups, 2*intermediate, hidden], gates before ups; e2m1 as pairs, the even "
        "one in the low nibble",
        "w1_scales": "scale pairs of w1: [groups, hidden/64, 2*intermediate]",
        "w2": "[groups, hidden, intermediate]; e2m1 as pairs likewise",
        "w2_scales": "scale pairs of w2: [groups, intermediate/64, hidden]",
        "weights": "one factor per row, the token's routing weight",
        "grouped_layout": "the row after each group's last one",
        "h": "[m, intermediate], the quantised activations; scratch for who does not want them",
        "h_scales": "scale pairs of h: [intermediate/64, m]",
        "y": "[m, hidden], row-major; only rows of groups are written",
    },
    tolerance="integers with gates whose silu is exact to the last bit; random values within calc_diff 1e-5 "
    "of the same steps in float64, the activations quantised",
    facts=(
        "https://github.com/deepseek-ai/DeepGEMM (MegaMoE: order of products, activation, weight and cast)",
        "asc-devkit, asc_sync_inter_arrive and asc_sync_inter_wait: all vector cores, counters of 4 bits",
    ),
    serves=("deep_gemm.fp8_fp4_mega_moe",),
    examples=(
        ExpertMlpSpec(groups=8, hidden=7168, intermediate=2048, clamp=10.0),
        ExpertMlpSpec(hidden=4096, intermediate=1536, dtype_w="e4m3"),
    ),
)

FAMILY = Family(
    name="expert_mlp",
    summary="both products of each expert's MLP with the activation between them, in one launch",
    spec_type=ExpertMlpSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=EXPERT_MLP_SOURCES,
    page=PAGE,
)
