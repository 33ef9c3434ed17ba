"""engram_sinkhorn_step_reduce: sums of squares by column from partial sums, in a fixed order."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import KernelSpec, require_int, within
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowPlan
from kaas.kernel_library.vector.stream_columns import STREAM_COLUMN_SOURCE, plan_stream_columns
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class EngramSinkhornStepReduceSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="engram_sinkhorn_step_reduce"
):
    """col_sumsq = the sum of all rows of col_sumsq_partial, added in ascending order.

    Arguments in call order: col_sumsq_partial[partials, head_dim], col_sumsq[head_dim], both fp32.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    head_dim: Annotated[int, within(64, 32768, multiple_of=64)]
    partials: Annotated[int, within(1, 1024)] = 256

    def __post_init__(self) -> None:
        require_int(self.head_dim, "head_dim", 64, 32768, multiple_of=64)
        require_int(self.partials, "partials", 1, 1024)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if 64 columns of all partial sums do not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: EngramSinkhornStepReduceSpec, target: Target) -> tuple[int, RowPlan]:
    """Columns of a piece and the plan of pieces."""
    return plan_stream_columns(
        target, streams=1, hidden=spec.head_dim, column_bytes=4 * (spec.partials + 1), field="partials"
    )


def build(spec: EngramSinkhornStepReduceSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` with too many partial sums."""
    columns, plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, columns, plan, target.vector_cores),
        choices={"columns": columns, "stages": plan.stages, "why": plan.why},
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: EngramSinkhornStepReduceSpec) -> tuple[Parameter, ...]:
    """What a call takes: partial sums and sums."""
    return (
        Parameter(name="col_sumsq_partial", role="in", dtype="fp32", shape=(spec.partials, spec.head_dim)),
        Parameter(name="col_sumsq", role="out", dtype="fp32", shape=(spec.head_dim,)),
    )


def _program(spec: EngramSinkhornStepReduceSpec, columns: int, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: all partial sums of a piece of the columns come to UB together."""
    import tilelang.ascend.language as T

    entry = Entry("engram_sinkhorn_step_reduce", parameters(spec))
    partials = spec.partials

    @T.macro
    def load(state: Any, slot: Any, piece: Any, count: Any) -> None:
        call, partial_ub, _ = state
        at = piece * columns
        T.copy(call.col_sumsq_partial[0:partials, at : at + columns], partial_ub[slot, 0:partials, 0:columns])

    @T.macro
    def compute(state: Any, slot: Any, piece: Any, count: Any) -> None:
        _, partial_ub, sums_ub = state
        with T.SimdVF():
            total = T.simd.alloc_local((1,), "float32")
            for vector in T.serial(T.uint16(columns // VECTOR_LANES)):
                at = T.cast(vector, "int32") * VECTOR_LANES
                total[0] = T.simd.vld(partial_ub[slot, 0, at])
                if partials > 1:
                    for partial in T.serial(T.uint16(partials - 1)):
                        value = T.simd.vld(partial_ub[slot, T.cast(partial, "int32") + 1, at])
                        total[0] = T.simd.vadd(total[0], value)
                T.simd.vsts(sums_ub[slot, at], total[0])

    @T.macro
    def store(state: Any, slot: Any, piece: Any, count: Any) -> None:
        call, _, sums_ub = state
        at = piece * columns
        T.copy(sums_ub[slot, 0:columns], call.col_sumsq[at : at + columns])

    run = row_pipeline(plan, cores, spec.head_dim // columns, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            partial_ub = T.alloc_shared((plan.stages, partials, columns), "float32")
            sums_ub = T.alloc_shared((plan.stages, columns), "float32")
            run((call, partial_ub, sums_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="engram_sinkhorn_step_reduce",
    summary="sums of squares by column from partial sums, in a fixed order",
    spec_type=EngramSinkhornStepReduceSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, STREAM_COLUMN_SOURCE),
    page=KernelPage(
        computes=(
            "`col_sumsq[c]` = `col_sumsq_partial[0, c]` + `col_sumsq_partial[1, c]` + ..., in fp32 and in "
            "this order."
        ),
        arguments={
            "col_sumsq_partial": "row-major fp32, as engram_sinkhorn_step makes them",
            "col_sumsq": "fp32, one per column",
        },
        tolerance="exact: fp32 additions in ascending order",
        facts=("Butterfingrz/TileKernels on github.com: tile_kernels/engram/engram_sinkhorn_kernel.py",),
        serves=("tile_kernels.engram.engram_sinkhorn_step_reduce",),
        examples=(EngramSinkhornStepReduceSpec(head_dim=1024),),
    ),
)
