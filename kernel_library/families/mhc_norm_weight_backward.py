"""mhc_norm_weight_backward: gradients of mhc_norm_weight, added to those that are there."""

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

MATRICES = ("merged_grad", "weight", "weight_grad")
VECTORS = ("norm_weight", "norm_weight_grad")


class MhcNormWeightBackwardSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_norm_weight_backward"
):
    """Gradients of mhc_norm_weight with the same ``hidden`` and ``columns``, fp32.

    Arguments in call order: merged_grad[columns, hidden], weight[columns, hidden], norm_weight[hidden];
    weight_grad like weight and norm_weight_grad like norm_weight, which are added to.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Width
    columns: Mixes = 24

    def __post_init__(self) -> None:
        require_width(self.hidden)
        require_mixes(self.columns)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if 64 columns of all matrices do not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MhcNormWeightBackwardSpec, target: Target) -> tuple[int, RowPlan]:
    """Columns of a piece and the plan of pieces. A piece has all rows."""
    column_bytes = 4 * (len(MATRICES) * spec.columns + len(VECTORS))
    return plan_stream_columns(
        target, streams=1, hidden=spec.hidden, column_bytes=column_bytes, field="columns"
    )


def parameters(spec: MhcNormWeightBackwardSpec) -> tuple[Parameter, ...]:
    """What a call takes: merged_grad, weight, norm_weight, and the gradients of these two."""
    shape, width = (spec.columns, spec.hidden), (spec.hidden,)
    return (
        Parameter(name="merged_grad", role="in", dtype="fp32", shape=shape),
        Parameter(name="weight", role="in", dtype="fp32", shape=shape),
        Parameter(name="norm_weight", role="in", dtype="fp32", shape=width),
        Parameter(name="weight_grad", role="inout", dtype="fp32", shape=shape),
        Parameter(name="norm_weight_grad", role="inout", dtype="fp32", shape=width),
    )


def build(spec: MhcNormWeightBackwardSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a piece does not fit UB."""
    columns, plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, columns, plan, target.vector_cores),
        choices={"columns": columns, "stages": plan.stages, "why": plan.why},
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcNormWeightBackwardSpec, columns: int, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    entry = Entry("mhc_norm_weight_backward", parameters(spec))
    rows = spec.columns

    @T.macro
    def load(state: Any, slot: Any, piece: Any, count: Any) -> None:
        call, ub = state
        at = piece * columns
        for name in MATRICES:
            T.copy(getattr(call, name)[0:rows, at : at + columns], ub[name][slot, 0:rows, 0:columns])
        for name in VECTORS:
            T.copy(getattr(call, name)[at : at + columns], ub[name][slot, 0:columns])

    @T.macro
    def compute(state: Any, slot: Any, piece: Any, count: Any) -> None:
        _, ub = state
        with T.SimdVF():
            for vector in T.serial(T.uint16(columns // VECTOR_LANES)):
                at = T.cast(vector, "int32") * VECTOR_LANES
                norm = T.simd.alloc_var("float32")
                of_norm = T.simd.alloc_var("float32")
                norm = T.simd.vld(ub["norm_weight"][slot, at])
                of_norm = T.simd.vld(ub["norm_weight_grad"][slot, at])
                for row_16 in T.serial(T.uint16(rows)):
                    row = T.cast(row_16, "int32")
                    gradient = T.simd.alloc_var("float32")
                    of_weight = T.simd.alloc_var("float32")
                    gradient = T.simd.vld(ub["merged_grad"][slot, row, at])
                    of_weight = T.simd.vld(ub["weight_grad"][slot, row, at])
                    T.simd.vmula(of_weight, gradient, norm)
                    T.simd.vmula(of_norm, gradient, T.simd.vld(ub["weight"][slot, row, at]))
                    T.simd.vsts(ub["weight_grad"][slot, row, at], of_weight)
                T.simd.vsts(ub["norm_weight_grad"][slot, at], of_norm)

    @T.macro
    def store(state: Any, slot: Any, piece: Any, count: Any) -> None:
        call, ub = state
        at = piece * columns
        T.copy(ub["weight_grad"][slot, 0:rows, 0:columns], call.weight_grad[0:rows, at : at + columns])
        T.copy(ub["norm_weight_grad"][slot, 0:columns], call.norm_weight_grad[at : at + columns])

    run = row_pipeline(plan, cores, spec.hidden // columns, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            ub = {
                **{name: T.alloc_shared((plan.stages, rows, columns), "float32") for name in MATRICES},
                **{name: T.alloc_shared((plan.stages, columns), "float32") for name in VECTORS},
            }
            run((call, ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="mhc_norm_weight_backward",
    summary="gradients of mhc_norm_weight, added to those that are there",
    spec_type=MhcNormWeightBackwardSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, STREAM_COLUMN_SOURCE, "kaas.kernel_library.vector.mhc_fields"),
    page=KernelPage(
        computes=(
            "    weight_grad[c, h]   += merged_grad[c, h] * norm_weight[h]\n"
            "    norm_weight_grad[h] += sum over c of merged_grad[c, h] * weight[c, h]\n\n"
            "in fused fp32 multiply-adds, the sum in ascending order."
        ),
        arguments={
            "merged_grad": "gradient of merged, row-major",
            "weight": "as the forward kernel took it",
            "norm_weight": "as the forward kernel took it",
            "weight_grad": "gradient of weight, added to",
            "norm_weight_grad": "gradient of norm_weight, added to",
        },
        tolerance="integers bit by bit; else 2^-22 of the value and 2^-18 for sums of 24 values of about 1",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_fn_normw_merge_bwd",),
        examples=(MhcNormWeightBackwardSpec(hidden=4 * 7168),),
    ),
)
