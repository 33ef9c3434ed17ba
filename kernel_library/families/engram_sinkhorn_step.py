"""engram_sinkhorn_step: one iteration's row norms, row scales and sums of squares by column."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    Epsilon,
    KernelSpec,
    require_dim,
    require_epsilon,
    require_int,
    within,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import (
    MAX_ROWS,
    MAX_STAGES,
    NOMINAL_ROWS,
    VECTOR_LANES,
    RowPlan,
    RowTile,
    plan_rows,
    require_row_tile,
)
from kaas.kernel_library.vector.sinkhorn_rows import SINKHORN_ROW_SOURCES, scale_row
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

PART_EVENT = 7
"""Of the flag that guards a part's sums; smaller numbers belong to the stages."""


class EngramSinkhornStepSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="engram_sinkhorn_step"
):
    """Rows of row_scale * matrix * col_scale normalised, and their squares summed by column.

    Arguments in call order: matrix[rows, head_dim]; row_scale[rows], updated in place; col_scale[head_dim];
    row_norm[rows]; col_sumsq_partial[partials, head_dim]; all fp32. Partial sum p covers the rows
    p * ceil(rows / partials) and following, in ascending order, so that no sum depends on the core count.
    ``eps`` is compiled in.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    head_dim: Annotated[int, within(64, 32768, multiple_of=64)]
    eps: Epsilon = 1e-8
    partials: Annotated[int, within(1, 1024)] = 256
    rows: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.head_dim, "head_dim", 64, 32768, multiple_of=64)
        require_epsilon(self.eps, "eps")
        require_int(self.partials, "partials", 1, 1024)
        require_dim(self.rows, "rows")
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row, column scales and sums do not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: EngramSinkhornStepSpec, target: Target) -> RowPlan:
    """The row plan of one part, whose rows are scaled in place."""
    rows = NOMINAL_ROWS if spec.rows == DYNAMIC else int(spec.rows)
    return plan_rows(
        target,
        row_bytes=4 * spec.head_dim,
        fixed_bytes=2 * 4 * spec.head_dim + (2 * MAX_STAGES + 1) * 4 * MAX_ROWS,
        rows=-(-rows // spec.partials) * target.vector_cores,
        passes=5.0,
        what=f"a row of {spec.head_dim} columns beside the columns' scales and sums",
        field="head_dim",
        given=spec.tile,
    )


def build(spec: EngramSinkhornStepSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: EngramSinkhornStepSpec) -> tuple[Parameter, ...]:
    """What a call takes: the matrix, both scales, norms and partial sums."""
    rows: Extent = "rows" if spec.rows == DYNAMIC else spec.rows
    columns = spec.head_dim
    return (
        Parameter(name="matrix", role="in", dtype="fp32", shape=(rows, columns), may_be_empty=True),
        Parameter(name="row_scale", role="inout", dtype="fp32", shape=(rows,), may_be_empty=True),
        Parameter(name="col_scale", role="in", dtype="fp32", shape=(columns,)),
        Parameter(name="row_norm", role="out", dtype="fp32", shape=(rows,), may_be_empty=True),
        Parameter(name="col_sumsq_partial", role="out", dtype="fp32", shape=(spec.partials, columns)),
    )


def _program(spec: EngramSinkhornStepSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: parts are shared out over the cores, each whole on one of them."""
    import tilelang.ascend.language as T

    entry = Entry("engram_sinkhorn_step", parameters(spec))
    rows = entry.extent("rows" if spec.rows == DYNAMIC else spec.rows)
    columns, partials = spec.head_dim, spec.partials
    vectors = columns // VECTOR_LANES
    scaled = scale_row(columns)

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, buffers, origin = state
        matrix_ub, scale_ub, _, _, _, _ = buffers
        begin = T.alloc_var("int32")
        begin = origin[0] + first
        T.copy(call.matrix[begin : begin + count, 0:columns], matrix_ub[slot, 0:count, 0:columns])
        T.copy(call.row_scale[begin : begin + count], scale_ub[slot, 0:count])

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, (matrix_ub, scale_ub, norm_ub, inverse_ub, column_ub, sums_ub), _ = state
        with T.SimdVF():
            total = T.simd.alloc_local((1,), "float32")
            for row in T.serial(T.cast(count, "uint16")):
                place = T.cast(row, "int32")
                factor = T.simd.vld(scale_ub[slot, place], dist="BRC_B32")
                norm = scaled(matrix_ub, column_ub, slot, place, factor)
                inverse = T.simd.vdiv(T.simd.vdup(1.0, "float32"), T.simd.vadds(norm, spec.eps))
                T.simd.vsts(norm_ub[slot, place], norm, dist="ONEPT_B32")
                T.simd.vsts(inverse_ub[place], inverse, dist="ONEPT_B32")
                T.simd.vsts(scale_ub[slot, place], T.simd.vmul(factor, inverse), dist="ONEPT_B32")
            T.simd.mem_bar("VST_VLD")
            for vector in T.serial(T.uint16(vectors)):
                at = T.cast(vector, "int32") * VECTOR_LANES
                total[0] = T.simd.vld(sums_ub[at])
                for row in T.serial(T.cast(count, "uint16")):
                    place = T.cast(row, "int32")
                    value = T.simd.vmul(
                        T.simd.vld(matrix_ub[slot, place, at]),
                        T.simd.vld(inverse_ub[place], dist="BRC_B32"),
                    )
                    T.simd.vmula(total[0], value, value)
                T.simd.vsts(sums_ub[at], total[0])
            # The next stage adds to these sums, and writes where these inverses were read.
            T.simd.mem_bar("VST_VLD")
            T.simd.mem_bar("VLD_VST")

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, buffers, origin = state
        _, scale_ub, norm_ub, _, _, _ = buffers
        begin = T.alloc_var("int32")
        begin = origin[0] + first
        T.copy(scale_ub[slot, 0:count], call.row_scale[begin : begin + count])
        T.copy(norm_ub[slot, 0:count], call.row_norm[begin : begin + count])

    @T.macro
    def clear(sums_ub: Any) -> None:
        with T.SimdVF():
            for vector in T.serial(T.uint16(vectors)):
                T.simd.vsts(sums_ub[T.cast(vector, "int32") * VECTOR_LANES], T.simd.vdup(0.0, "float32"))

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            matrix_ub = T.alloc_shared((plan.stages, plan.rows, columns), "float32")
            scale_ub = T.alloc_shared((plan.stages, MAX_ROWS), "float32")
            norm_ub = T.alloc_shared((plan.stages, MAX_ROWS), "float32")
            inverse_ub = T.alloc_shared((MAX_ROWS,), "float32")
            column_ub = T.alloc_shared((columns,), "float32")
            sums_ub = T.alloc_shared((columns,), "float32")
            origin = T.alloc_local((1,), "int32")
            part_rows = T.alloc_var("int32")
            mine = T.alloc_var("int32")
            part = T.alloc_var("int32")
            held = T.alloc_var("int32")
            part_rows = T.truncdiv(rows + partials - 1, partials)
            mine = T.truncdiv(partials + cores - 1 - core, cores)
            # In front of the first stage's load on the same pipe, whose flag says that both are there.
            T.copy(call.col_scale[0:columns], column_ub[0:columns])
            T.ascend_set_flag("MTE3_V", 0)
            for index in T.serial(mine):
                part = index * cores + core
                origin[0] = part * part_rows
                held = T.max(T.min(part_rows, rows - part * part_rows), 0)
                T.ascend_wait_flag("MTE3_V", 0)
                clear(sums_ub)
                row_pipeline(plan, 1, held, load=load, compute=compute, store=store)(
                    (call, (matrix_ub, scale_ub, norm_ub, inverse_ub, column_ub, sums_ub), origin), 0
                )
                T.ascend_set_flag("V_MTE3", PART_EVENT)
                T.ascend_wait_flag("V_MTE3", PART_EVENT)
                T.copy(sums_ub[0:columns], call.col_sumsq_partial[part, 0:columns])
                T.ascend_set_flag("MTE3_V", 0)
            T.ascend_wait_flag("MTE3_V", 0)

    return entry.prim_func(block)


FAMILY = Family(
    name="engram_sinkhorn_step",
    summary="one Sinkhorn iteration: row norms, row scales and partial sums of squares by column",
    spec_type=EngramSinkhornStepSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, *SINKHORN_ROW_SOURCES),
    page=KernelPage(
        computes=(
            "For each row r, with |v| the square root of the sum of squares:\n\n"
            "    v[c]          = row_scale[r] * matrix[r, c] * col_scale[c]\n"
            "    row_norm[r]   = |v|\n"
            "    inverse       = 1 / (|v| + eps)\n"
            "    row_scale[r] *= inverse\n"
            "    col_sumsq_partial[p, c] += (v[c] * inverse)^2\n\n"
            "with the partial sums 0 at first and p = r / ceil(rows / `partials`), rounded down; a partial "
            "sum without rows is 0. Rows are added in ascending order, so that sums have the same bits on "
            "any number of cores. All in fp32, squares included: they overflow from 2^64 on."
        ),
        arguments={
            "matrix": "row-major fp32, the same in every iteration",
            "row_scale": "fp32, one per row; multiplied in place",
            "col_scale": "fp32, one per column",
            "row_norm": "fp32, the norm of each row before this iteration's normalisation",
            "col_sumsq_partial": "row-major fp32, for engram_sinkhorn_step_reduce to add up",
        },
        tolerance="2^-18 of the value",
        facts=(
            "Butterfingrz/TileKernels on github.com: tile_kernels/engram/engram_sinkhorn_kernel.py, "
            "which has as many partial sums as vector cores; here `partials` says how many there are",
        ),
        serves=("tile_kernels.engram.engram_sinkhorn_step",),
        examples=(EngramSinkhornStepSpec(head_dim=1024),),
    ),
)
