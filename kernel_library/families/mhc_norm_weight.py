"""mhc_norm_weight: the weight of a norm multiplied into the projection behind it."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import KernelSpec
from kaas.kernel_library.vector.mhc_fields import Mixes, Width, require_mixes, require_width
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowPlan
from kaas.kernel_library.vector.stream_columns import STREAM_COLUMN_SOURCE, plan_stream_columns
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class MhcNormWeightSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_norm_weight"
):
    """merged[columns, hidden] = weight[columns, hidden] * norm_weight[hidden], fp32.

    ``hidden`` is the width of all streams of a token side by side, ``columns`` how many mixing logits are
    projected from it. Arguments in call order: weight, norm_weight, merged.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Width
    columns: Mixes = 24

    def __post_init__(self) -> None:
        require_width(self.hidden)
        require_mixes(self.columns)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if 64 columns of the weight do not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MhcNormWeightSpec, target: Target) -> tuple[int, RowPlan]:
    """Columns of a piece and the plan of pieces. A piece has all rows, changed in place."""
    column_bytes = 4 * (spec.columns + 1)
    return plan_stream_columns(
        target, streams=1, hidden=spec.hidden, column_bytes=column_bytes, field="columns"
    )


def parameters(spec: MhcNormWeightSpec) -> tuple[Parameter, ...]:
    """What a call takes: weight, norm_weight, merged."""
    shape = (spec.columns, spec.hidden)
    return (
        Parameter(name="weight", role="in", dtype="fp32", shape=shape),
        Parameter(name="norm_weight", role="in", dtype="fp32", shape=(spec.hidden,)),
        Parameter(name="merged", role="out", dtype="fp32", shape=shape),
    )


def build(spec: MhcNormWeightSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a piece does not fit UB."""
    columns, plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, columns, plan, target.vector_cores),
        choices={"columns": columns, "stages": plan.stages, "why": plan.why},
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcNormWeightSpec, columns: int, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    entry = Entry("mhc_norm_weight", parameters(spec))
    rows = spec.columns

    @T.macro
    def load(state: Any, slot: Any, piece: Any, count: Any) -> None:
        call, weight_ub, norm_ub = state
        at = piece * columns
        T.copy(call.weight[0:rows, at : at + columns], weight_ub[slot, 0:rows, 0:columns])
        T.copy(call.norm_weight[at : at + columns], norm_ub[slot, 0:columns])

    @T.macro
    def compute(state: Any, slot: Any, piece: Any, count: Any) -> None:
        _, weight_ub, norm_ub = state
        with T.SimdVF():
            for vector in T.serial(T.uint16(columns // VECTOR_LANES)):
                at = T.cast(vector, "int32") * VECTOR_LANES
                norm = T.simd.alloc_var("float32")
                norm = T.simd.vld(norm_ub[slot, at])
                for row_16 in T.serial(T.uint16(rows)):
                    row = T.cast(row_16, "int32")
                    merged = T.simd.vmul(T.simd.vld(weight_ub[slot, row, at]), norm)
                    T.simd.vsts(weight_ub[slot, row, at], merged)

    @T.macro
    def store(state: Any, slot: Any, piece: Any, count: Any) -> None:
        call, weight_ub, _ = state
        at = piece * columns
        T.copy(weight_ub[slot, 0:rows, 0:columns], call.merged[0:rows, at : at + columns])

    run = row_pipeline(plan, cores, spec.hidden // columns, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            weight_ub = T.alloc_shared((plan.stages, rows, columns), "float32")
            norm_ub = T.alloc_shared((plan.stages, columns), "float32")
            run((call, weight_ub, norm_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="mhc_norm_weight",
    summary="the weight of a norm multiplied into the projection behind it",
    spec_type=MhcNormWeightSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, STREAM_COLUMN_SOURCE, "kaas.kernel_library.vector.mhc_fields"),
    page=KernelPage(
        computes=(
            "merged[c, h] = weight[c, h] * norm_weight[h], one fp32 product. hc_prenorm_gemm takes the "
            "result as its weight."
        ),
        arguments={
            "weight": "weight of the projection, row-major: one row per mixing logit",
            "norm_weight": "weight of the norm in front of it",
            "merged": "like weight",
        },
        tolerance="bit-exact",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_fn_normw_merge_fwd",),
        examples=(MhcNormWeightSpec(hidden=4 * 7168),),
    ),
)
