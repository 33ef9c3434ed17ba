"""aux_fi: how much more often than evenly each expert is chosen, for the auxiliary loss."""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macro below is a language of its own: what it annotates and calls are no Python types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.expert_histogram import HISTOGRAM_SOURCES, histogram_program, plan_histogram
from kaas.kernel_library.routing.lane_topk import INDEX_DTYPES, IndexDtype
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    KernelSpec,
    require_dim,
    require_int,
    require_one_of,
    within,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import RowPlan, RowTile, require_row_tile
from kaas.kernel_library.vector.word_blocks import MAX_WORDS
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_EXPERTS = 4096
MAX_INDICES_PER_TOKEN = 128


class AuxFiSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="aux_fi"):
    """Load of each expert relative to an even one, on the vector cores.

    Arguments in call order: topk_idx[tokens, topk] of ``index_dtype``; fi[experts] fp32; num_aux_topk, an
    int32 scalar. Indices that name no expert, -1 above all, are left out.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    experts: Annotated[int, within(1, MAX_EXPERTS)]
    topk: Annotated[int, within(1, MAX_INDICES_PER_TOKEN)]
    index_dtype: IndexDtype = "int64"
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.experts, "experts", 1, MAX_EXPERTS)
        require_int(self.topk, "topk", 1, MAX_INDICES_PER_TOKEN)
        require_one_of(self.index_dtype, "index_dtype", INDEX_DTYPES)
        require_dim(self.tokens, "tokens", MAX_WORDS // self.topk)
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the counters and a stage do not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: AuxFiSpec, target: Target) -> RowPlan:
    """The plan of blocks of 64 indices."""
    return plan_histogram(
        target,
        experts=spec.experts,
        topk=spec.topk,
        dtype=spec.index_dtype,
        tokens=spec.tokens,
        given=spec.tile,
    )


def build(spec: AuxFiSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    import tilelang.ascend.language as T

    plan = plan_of(spec, target)
    entry = Entry("aux_fi", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)

    @T.macro
    def relative_to_even(call: Any, count: Any) -> Any:
        share = T.simd.vmuls(T.simd.vcvt(count, "float32"), float(spec.experts))
        number = T.simd.vcvt(T.simd.vdup(tokens, "int32"), "float32")
        even = T.simd.vmul(number, T.simd.vcvt(T.simd.vdup(call.num_aux_topk, "int32"), "float32"))
        # Without a token nothing is counted, and nothing divided.
        return T.simd.vdiv(share, T.simd.vmaxs(even, 1.0))

    return BuiltKernel(
        prim_func=histogram_program(
            entry,
            plan,
            target.vector_cores,
            experts=spec.experts,
            topk=spec.topk,
            dtype=spec.index_dtype,
            tokens=tokens,
            indices="topk_idx",
            counts="fi",
            counts_dtype="float32",
            finish=relative_to_even,
        ),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: AuxFiSpec) -> tuple[Parameter, ...]:
    """What a call takes: topk_idx, fi and num_aux_topk."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    return (
        Parameter(
            name="topk_idx", role="in", dtype=spec.index_dtype, shape=(tokens, spec.topk), may_be_empty=True
        ),
        Parameter(name="fi", role="out", dtype="fp32", shape=(spec.experts,)),
        Parameter(name="num_aux_topk", role="scalar", dtype="int32"),
    )


FAMILY = Family(
    name="aux_fi",
    summary="how much more often than evenly each expert is chosen, for the auxiliary loss",
    spec_type=AuxFiSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=HISTOGRAM_SOURCES,
    page=KernelPage(
        computes=(
            "With n_e how often expert e occurs in `topk_idx`,\n\n"
            "    fi_e = n_e * experts / (tokens * num_aux_topk)\n\n"
            "which is 1 for experts that are chosen evenly. Counts are exact; indices that name no expert "
            "count nowhere. No tokens give zeros."
        ),
        arguments={
            "topk_idx": "row-major indices; -1 stands for none; of an int64 the low word is looked at",
            "fi": "fp32",
            "num_aux_topk": "how many choices of a token the loss is about, at least 1",
        },
        tolerance="2^-21 of the value",
        facts=("TileKernels: aux_fi",),
        serves=("tile_kernels.moe.aux_fi",),
        examples=(AuxFiSpec(experts=256, topk=8),),
    ),
)
