"""topk_groups: the groups of experts whose best one or two scores have the largest sum, per token."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry, looked_at
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.expert_groups import EXPERT_GROUPS_SOURCE, MAX_GROUPS, group_sums
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
from kaas.kernel_library.vector.row_plan import RowPlan, RowTile, padded, plan_rows, require_row_tile
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_GROUP_SIZE = 256


class TopkGroupsSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="topk_groups"):
    """The best groups of each token, ranked by the sum of their ``summed`` best scores, on the vector cores.

    Arguments in call order: scores[tokens, groups, group_size] fp32; topk_group_idx[tokens, topk_groups] of
    ``index_dtype``, best first. Equal sums go to the lower index.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    groups: Annotated[int, within(1, MAX_GROUPS)]
    group_size: Annotated[int, within(1, MAX_GROUP_SIZE)]
    topk_groups: Annotated[int, within(1, MAX_TOPK)]
    summed: Annotated[int, within(1, 2)] = 2
    index_dtype: IndexDtype = "int64"
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.groups, "groups", 1, MAX_GROUPS)
        require_int(self.group_size, "group_size", 1, MAX_GROUP_SIZE)
        require_int(self.topk_groups, "topk_groups", 1, MAX_TOPK)
        require_int(self.summed, "summed", 1, 2)
        require_one_of(self.index_dtype, "index_dtype", INDEX_DTYPES)
        require_dim(self.tokens, "tokens")
        require_row_tile(self.tile)
        for field, most, what in (
            ("topk_groups", self.groups, "groups"),
            ("summed", self.group_size, "scores of a group"),
        ):
            if getattr(self, field) > most:
                legal = f"at most the {most} {what}"
                raise InvalidSpec(
                    f"{field} is {getattr(self, field)}; legal: {legal}", field=field, legal=legal
                )

    @property
    def experts(self) -> int:
        """Scores of a token."""
        return self.groups * self.group_size

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the spec's own tile does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: TopkGroupsSpec, target: Target) -> RowPlan:
    """The row plan: a stage holds scores and indices."""
    return plan_rows(
        target,
        row_bytes=4 * (padded(spec.experts) + index_pitch(spec.topk_groups, spec.index_dtype)),
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        passes=2.0 * spec.summed,
        what=f"a row of {spec.experts} scores",
        field="group_size",
        given=spec.tile,
    )


def build(spec: TopkGroupsSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: TopkGroupsSpec) -> tuple[Parameter, ...]:
    """What a call takes: scores and topk_group_idx."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    scores = (tokens, spec.groups, spec.group_size)
    return (
        Parameter(name="scores", role="in", dtype="fp32", shape=scores),
        Parameter(
            name="topk_group_idx", role="out", dtype=spec.index_dtype, shape=(tokens, spec.topk_groups)
        ),
    )


def _program(spec: TopkGroupsSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: lane g stands for group g of one token."""
    import tilelang.ascend.language as T

    entry = Entry("topk_groups", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    experts = spec.experts
    words = index_words(spec.topk_groups, spec.index_dtype)
    ranks, select = ranking_keys(), top_k(1, spec.topk_groups)
    sums_of = group_sums(spec.groups, spec.group_size, summed=spec.summed)

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, scores_ub, _ = state
        T.copy(
            looked_at(call.scores, (tokens, experts), "float32")[first : first + count, 0:experts],
            scores_ub[slot, 0:count, 0:experts],
        )

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, scores_ub, index_ub = state
        with T.SimdVF():
            keys = T.simd.alloc_local((1,), "int32")
            for row in T.serial(T.cast(count, "uint16")):
                keys[0] = without_padding(ranks(sums_of(scores_ub, slot, T.cast(row, "int32"))), spec.groups)
                chosen = select(keys)
                store_indices(
                    index_ub, chosen, spec.topk_groups, spec.index_dtype, slot, T.cast(row, "int32"), 0
                )

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, _, index_ub = state
        T.copy(
            index_ub[slot, 0:count, 0:words],
            looked_at(call.topk_group_idx, (tokens, words), "int32")[first : first + count, 0:words],
        )

    run = row_pipeline(plan, cores, tokens, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            scores_ub = T.alloc_shared((plan.stages, plan.rows, padded(experts)), "float32")
            index_ub = T.alloc_shared(
                (plan.stages, plan.rows, index_pitch(spec.topk_groups, spec.index_dtype)), "int32"
            )
            run((call, scores_ub, index_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="topk_groups",
    summary="the groups of experts whose best scores have the largest sum, per token",
    spec_type=TopkGroupsSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, EXPERT_GROUPS_SOURCE, LANE_TOPK_SOURCE),
    page=KernelPage(
        computes=(
            "A group is worth the sum of its `summed` largest scores, in fp32. `topk_group_idx[t]` lists the "
            "`topk_groups` groups of token t that are worth most, best first, ties to the lower index. "
            "Scores are finite or infinite; a token with a NaN spoils no other token."
        ),
        arguments={
            "scores": "row-major fp32, the groups of each token and their scores",
            "topk_group_idx": "row-major indices 0 to groups - 1",
        },
        tolerance="exact",
        facts=("TileKernels, first version: topk_sum_and_topk_group_idx, for up to 32 groups",),
        serves=("tile_kernels.moe.topk_sum_and_topk_group_idx",),
        examples=(TopkGroupsSpec(groups=8, group_size=32, topk_groups=4),),
    ),
)
