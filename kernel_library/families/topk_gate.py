"""topk_gate: the k best experts of each token by score, ties to the lower index."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry, looked_at
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.lane_topk import (
    INDEX_DTYPES,
    LANE_TOPK_SOURCE,
    MAX_TOPK,
    IndexDtype,
    index_pitch,
    index_words,
    ranking_keys,
    store_indices,
    top_k,
    without_padding,
)
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    KernelSpec,
    require_dim,
    require_int,
    require_one_of,
    within,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import (
    VECTOR_LANES,
    RowPlan,
    RowTile,
    padded,
    plan_rows,
    require_row_tile,
)
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_EXPERTS = 1024


class TopkGateSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="topk_gate"):
    """Stable top-k of rows of scores on the vector cores.

    Arguments in call order: scores[tokens, experts] fp32; topk_idx[tokens, topk] of ``index_dtype``, best
    first. Equal scores go to the lower index; NaN ranks above everything, as in ``torch.sort``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    experts: Annotated[int, within(1, MAX_EXPERTS)]
    topk: Annotated[int, within(1, MAX_TOPK)]
    index_dtype: IndexDtype = "int64"
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.experts, "experts", 1, MAX_EXPERTS)
        require_int(self.topk, "topk", 1, MAX_TOPK)
        require_one_of(self.index_dtype, "index_dtype", INDEX_DTYPES)
        require_dim(self.tokens, "tokens")
        require_row_tile(self.tile)
        if self.topk > self.experts:
            raise InvalidSpec(
                f"topk is {self.topk}; legal: at most the {self.experts} experts",
                field="topk",
                legal=f"an integer from 1 to {self.experts}",
            )

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the spec's own tile does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: TopkGateSpec, target: Target) -> RowPlan:
    """The row plan: a stage holds scores and indices."""
    return plan_rows(
        target,
        row_bytes=padded(spec.experts) * 4 + index_pitch(spec.topk, spec.index_dtype) * 4,
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        passes=3.0 * spec.topk,
        what=f"a row of {spec.experts} scores",
        field="experts",
        given=spec.tile,
    )


def build(spec: TopkGateSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: TopkGateSpec) -> tuple[Parameter, ...]:
    """What a call takes: scores and topk_idx."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    return (
        Parameter(name="scores", role="in", dtype="fp32", shape=(tokens, spec.experts)),
        Parameter(name="topk_idx", role="out", dtype=spec.index_dtype, shape=(tokens, spec.topk)),
    )


def _program(spec: TopkGateSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``."""
    import tilelang.ascend.language as T

    entry = Entry("topk_gate", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    experts, vectors = spec.experts, padded(spec.experts) // VECTOR_LANES
    words = index_words(spec.topk, spec.index_dtype)
    ranks, select = ranking_keys(), top_k(vectors, spec.topk)

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, scores_ub, _ = state
        T.copy(call.scores[first : first + count, 0:experts], scores_ub[slot, 0:count, 0:experts])

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, scores_ub, index_ub = state
        with T.SimdVF():
            keys = T.simd.alloc_local((vectors,), "int32")
            for row in T.serial(T.cast(count, "uint16")):
                for i in T.unroll(vectors, explicit=True):
                    scores = T.simd.vld(scores_ub[slot, T.cast(row, "int32"), i * VECTOR_LANES])
                    keys[i] = ranks(scores)
                keys[vectors - 1] = without_padding(keys[vectors - 1], experts)
                chosen = select(keys)
                store_indices(index_ub, chosen, spec.topk, spec.index_dtype, slot, T.cast(row, "int32"), 0)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, _, index_ub = state
        T.copy(
            index_ub[slot, 0:count, 0:words],
            looked_at(call.topk_idx, (tokens, words), "int32")[first : first + count, 0:words],
        )

    run = row_pipeline(plan, cores, tokens, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            scores_ub = T.alloc_shared((plan.stages, plan.rows, padded(experts)), "float32")
            index_ub = T.alloc_shared(
                (plan.stages, plan.rows, index_pitch(spec.topk, spec.index_dtype)), "int32"
            )
            run((call, scores_ub, index_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="topk_gate",
    summary="the k best experts of each token by score, ties to the lower index",
    spec_type=TopkGateSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, LANE_TOPK_SOURCE),
    page=KernelPage(
        computes=(
            "`topk_idx[t]` lists the `topk` experts of token t with the largest `scores[t]`, best first. "
            "Equal scores (the two zeros are equal) go to the lower index. Any row is legal: NaN ranks "
            "above everything and infinities where they belong, as in a stable descending `torch.sort`; "
            "the indices of a row are always different."
        ),
        arguments={
            "scores": "row-major fp32, one row of `experts` per token",
            "topk_idx": "row-major indices 0 to experts - 1",
        },
        tolerance="exact, against a stable descending sort",
        facts=("TileKernels: stable top-k, ties to the lower index, finite scores",),
        serves=("tile_kernels.moe.topk_gate",),
        examples=(TopkGateSpec(experts=256, topk=8), TopkGateSpec(experts=72, topk=6, index_dtype="int32")),
    ),
)
