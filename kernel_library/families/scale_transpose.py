"""scale_transpose: scales of square weight blocks as packed pairs for the product and for its transpose."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import DYNAMIC, Dim, KernelSpec, require_bool, require_dim
from kaas.kernel_library.vector.block_values import BLOCK
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.scale_pairs import SCALE_PAIR_SOURCES, PairLayout, allocate_pairs, pair_pass
from kaas.kernel_library.vector.tile_pipeline import TILE_KERNEL_SOURCES, TilePlan
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent, divided, scaled
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_EXTENT = 2**22
ALONG_K = PairLayout(source="fp32", major="k", repeat=BLOCK)
ALONG_N = PairLayout(source="fp32", major="mn", repeat=BLOCK)


class ScaleTransposeSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="scale_transpose"
):
    """Scales of a weight [n, k], one per 32 x 32 values, packed along k and along n.

    Arguments in call order: scales[n/32, k/32] fp32; along_k[ceil(k/64), n] and along_n[ceil(n/64), k], e8m0
    pairs. With ``batched`` all three have a first axis of weights. Static extents are multiples of 32.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    n: Dim = "dynamic"
    k: Dim = "dynamic"
    batched: bool = False

    def __post_init__(self) -> None:
        for field, value in (("n", self.n), ("k", self.k)):
            require_dim(value, field, MAX_EXTENT)
            if value != DYNAMIC and int(value) % BLOCK:
                legal = f'a multiple of {BLOCK} up to {MAX_EXTENT}, or "{DYNAMIC}"'
                raise InvalidSpec(f"{field} is {value}; legal: {legal}", field=field, legal=legal)
        require_bool(self.batched, "batched")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the tiles do not fit ``target``'s UB."""
        plans_of(self, target)


def plans_of(spec: ScaleTransposeSpec, target: Target) -> tuple[TilePlan, TilePlan]:
    """The tiles along k and along n; raises :class:`DoesNotFit` if they do not fit side by side."""
    n, k = (None if extent == DYNAMIC else int(extent) for extent in (spec.n, spec.k))
    along_k = ALONG_K.plan(target, k and k // BLOCK, n, field="k")
    taken = along_k.stages * ALONG_K.stage_bytes(along_k.rows, along_k.columns)
    return along_k, ALONG_N.plan(target, n and n // BLOCK, k, field="n", fixed_bytes=taken)


def _blocks(spec: ScaleTransposeSpec) -> tuple[Extent, Extent]:
    down: Extent = "row_blocks" if spec.n == DYNAMIC else int(spec.n) // BLOCK
    across: Extent = "column_blocks" if spec.k == DYNAMIC else int(spec.k) // BLOCK
    return down, across


def parameters(spec: ScaleTransposeSpec) -> tuple[Parameter, ...]:
    """What a call takes: the scales, the two results."""
    down, across = _blocks(spec)
    batch: tuple[Extent, ...] = ("batches",) if spec.batched else ()
    along_k = (*batch, divided(across, 2), scaled(down, BLOCK))
    along_n = (*batch, divided(down, 2), scaled(across, BLOCK))
    return (
        Parameter(name="scales", role="in", dtype="fp32", shape=(*batch, down, across)),
        Parameter(name="along_k", role="out", dtype="e8m0x2", shape=along_k),
        Parameter(name="along_n", role="out", dtype="e8m0x2", shape=along_n),
    )


def build(spec: ScaleTransposeSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``: two passes over the scales.

    Raises :class:`DoesNotFit` if the tiles do not fit UB.
    """
    plans = plans_of(spec, target)
    names = ("rows", "columns", "stages")
    second = {f"{name}_along_n": getattr(plans[1], name) for name in names}
    return BuiltKernel(
        prim_func=_program(spec, plans, target.vector_cores),
        choices=plans[0].choices(**second),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: ScaleTransposeSpec, plans: tuple[TilePlan, TilePlan], cores: int) -> Any:
    """The TileLang function of ``spec``."""
    import tilelang.ascend.language as T

    entry = Entry("scale_transpose", parameters(spec))
    down, across = (entry.extent(extent) for extent in _blocks(spec))
    batches = entry.extent("batches") if spec.batched else None
    pass_along_k = pair_pass(
        ALONG_K,
        plans[0],
        cores,
        source="scales",
        pairs="along_k",
        batches=batches,
        rows=down * BLOCK,
        elements=across,
        source_rows=down,
    )
    pass_along_n = pair_pass(
        ALONG_N,
        plans[1],
        cores,
        source="scales",
        pairs="along_n",
        batches=batches,
        rows=across * BLOCK,
        elements=down,
        source_rows=across,
    )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            by_row_ub, along_k_ub = allocate_pairs(ALONG_K, plans[0])
            by_block_ub, along_n_ub = allocate_pairs(ALONG_N, plans[1])
            pass_along_k((call, by_row_ub, along_k_ub), core)
            pass_along_n((call, by_block_ub, along_n_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="scale_transpose",
    summary="scales of 32 x 32 weight blocks packed for the product and for its transpose",
    spec_type=ScaleTransposeSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TILE_KERNEL_SOURCES, *SCALE_PAIR_SOURCES),
    page=KernelPage(
        computes=(
            "`along_k[p, r]` holds the e8m0 of `scales[r // 32, 2p]` (low byte) and of its neighbour\n"
            "`scales[r // 32, 2p + 1]`; `along_n[p, c]` those of `scales[2p, c // 32]` and\n"
            "`scales[2p + 1, c // 32]`. A missing last one is 0. Scales must be powers of two; zero becomes\n"
            "byte 0 and anything else 255, NaN.\n"
            "One call converts one weight, or a batch of equal ones."
        ),
        arguments={
            "scales": "one power of two per 32 x 32 values of the weight",
            "along_k": "pairs of blocks of k by row of the weight",
            "along_n": "pairs of blocks of n by column of the weight",
        },
        tolerance="bit-exact",
        facts=(
            "github.com/deepseek-ai/TileKernels 2.0.0: "
            "tile_kernels/quant/batched_transpose_weight_sf_kernel.py (the two layouts)",
        ),
        serves=("tile_kernels.quant.batched_transpose_weight_sf",),
        examples=(ScaleTransposeSpec(n=2048, k=7168, batched=True), ScaleTransposeSpec()),
    ),
)
