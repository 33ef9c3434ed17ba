"""group_count: how many tokens each expert gets."""

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

MAX_GROUPS = 4096
MAX_INDICES_PER_TOKEN = 128


class GroupCountSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="group_count"):
    """Histogram of group (expert) indices on the vector cores.

    Arguments in call order: group_idx[tokens, topk] of ``index_dtype``; counts[groups] int32. Indices that
    name no group, -1 above all, are left out.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    groups: Annotated[int, within(1, MAX_GROUPS)]
    topk: Annotated[int, within(1, MAX_INDICES_PER_TOKEN)]
    index_dtype: IndexDtype = "int64"
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.groups, "groups", 1, MAX_GROUPS)
        require_int(self.topk, "topk", 1, MAX_INDICES_PER_TOKEN)
        require_one_of(self.index_dtype, "index_dtype", INDEX_DTYPES)
        require_dim(self.tokens, "tokens", MAX_WORDS // self.topk)
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the counters and a stage do not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: GroupCountSpec, target: Target) -> RowPlan:
    """The plan of blocks of 64 indices."""
    return plan_histogram(
        target,
        experts=spec.groups,
        topk=spec.topk,
        dtype=spec.index_dtype,
        tokens=spec.tokens,
        given=spec.tile,
    )


def build(spec: GroupCountSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    entry = Entry("group_count", parameters(spec))

    def as_counted(_: Any, count: Any) -> Any:
        return count

    return BuiltKernel(
        prim_func=histogram_program(
            entry,
            plan,
            target.vector_cores,
            experts=spec.groups,
            topk=spec.topk,
            dtype=spec.index_dtype,
            tokens=entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens),
            indices="group_idx",
            counts="counts",
            counts_dtype="int32",
            finish=as_counted,
        ),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: GroupCountSpec) -> tuple[Parameter, ...]:
    """What a call takes: group_idx and counts."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    return (
        Parameter(
            name="group_idx",
            role="in",
            dtype=spec.index_dtype,
            shape=(tokens, spec.topk),
            may_be_empty=True,
        ),
        Parameter(name="counts", role="out", dtype="int32", shape=(spec.groups,)),
    )


FAMILY = Family(
    name="group_count",
    summary="how many tokens each expert or group gets",
    spec_type=GroupCountSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=HISTOGRAM_SOURCES,
    page=KernelPage(
        computes=(
            "`counts[g]` is how often g occurs in `group_idx`. Indices that name no group count nowhere. "
            "Every vector core reads all indices and counts its own groups, without atomics."
        ),
        arguments={
            "group_idx": "row-major indices; -1 stands for none; of an int64 the low word is looked at",
            "counts": "int32, written whole, zeros included",
        },
        tolerance="exact",
        facts=("TileKernels: group_count, -1 left out",),
        serves=("tile_kernels.moe.group_count",),
        examples=(GroupCountSpec(groups=256, topk=8), GroupCountSpec(groups=72, topk=6, index_dtype="int32")),
    ),
)
