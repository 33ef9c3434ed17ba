"""engram_sinkhorn_finalize: the matrix that Sinkhorn's scales stand for, its rows normalised once more."""

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


class EngramSinkhornFinalizeSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="engram_sinkhorn_finalize"
):
    """out = alpha * v / (|v| + eps) by row, with v = row_scale * matrix * col_scale, in fp32.

    Arguments in call order: matrix[rows, head_dim], row_scale[rows], col_scale[head_dim],
    out[rows, head_dim], all fp32; the fp32 scalar alpha. ``eps`` is compiled in.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    head_dim: Annotated[int, within(64, 32768, multiple_of=64)]
    eps: Epsilon = 1e-8
    rows: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.head_dim, "head_dim", 64, 32768, multiple_of=64)
        require_epsilon(self.eps, "eps")
        require_dim(self.rows, "rows")
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row and the column scales do not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: EngramSinkhornFinalizeSpec, target: Target) -> RowPlan:
    """The row plan: rows are scaled in place."""
    return plan_rows(
        target,
        row_bytes=4 * spec.head_dim,
        fixed_bytes=4 * spec.head_dim + 4 * 4 * MAX_ROWS,
        rows=None if spec.rows == DYNAMIC else int(spec.rows),
        passes=3.0,
        what=f"a row of {spec.head_dim} columns beside the column scales",
        field="head_dim",
        given=spec.tile,
    )


def build(spec: EngramSinkhornFinalizeSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: EngramSinkhornFinalizeSpec) -> tuple[Parameter, ...]:
    """What a call takes: the matrix, both scales, the result and alpha."""
    rows: Extent = "rows" if spec.rows == DYNAMIC else spec.rows
    return (
        Parameter(name="matrix", role="in", dtype="fp32", shape=(rows, spec.head_dim)),
        Parameter(name="row_scale", role="in", dtype="fp32", shape=(rows,)),
        Parameter(name="col_scale", role="in", dtype="fp32", shape=(spec.head_dim,)),
        Parameter(name="out", role="out", dtype="fp32", shape=(rows, spec.head_dim)),
        Parameter(name="alpha", role="scalar", dtype="fp32"),
    )


def _program(spec: EngramSinkhornFinalizeSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``."""
    import tilelang.ascend.language as T

    entry = Entry("engram_sinkhorn_finalize", parameters(spec))
    rows = entry.extent("rows" if spec.rows == DYNAMIC else spec.rows)
    columns = spec.head_dim
    scaled = scale_row(columns)

    @T.macro
    def load_columns(state: Any) -> None:
        call, _, _, column_ub = state
        T.copy(call.col_scale[0:columns], column_ub[0:columns])

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, matrix_ub, scale_ub, _ = state
        T.copy(call.matrix[first : first + count, 0:columns], matrix_ub[slot, 0:count, 0:columns])
        T.copy(call.row_scale[first : first + count], scale_ub[slot, 0:count])

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, matrix_ub, scale_ub, column_ub = state
        with T.SimdVF():
            for row in T.serial(T.cast(count, "uint16")):
                place = T.cast(row, "int32")
                factor = T.simd.vld(scale_ub[slot, place], dist="BRC_B32")
                norm = scaled(matrix_ub, column_ub, slot, place, factor)
                last = T.simd.alloc_var("float32")
                last = T.simd.vdiv(T.simd.vdup(call.alpha, "float32"), T.simd.vadds(norm, spec.eps))
                T.simd.mem_bar("VST_VLD")
                for vector in T.serial(T.uint16(columns // VECTOR_LANES)):
                    at = T.cast(vector, "int32") * VECTOR_LANES
                    value = T.simd.vld(matrix_ub[slot, place, at])
                    T.simd.vsts(matrix_ub[slot, place, at], T.simd.vmul(value, last))

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, matrix_ub, _, _ = state
        T.copy(matrix_ub[slot, 0:count, 0:columns], call.out[first : first + count, 0:columns])

    run = row_pipeline(plan, cores, rows, load=load, compute=compute, store=store, prepare=load_columns)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            matrix_ub = T.alloc_shared((plan.stages, plan.rows, columns), "float32")
            scale_ub = T.alloc_shared((plan.stages, MAX_ROWS), "float32")
            column_ub = T.alloc_shared((columns,), "float32")
            run((call, matrix_ub, scale_ub, column_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="engram_sinkhorn_finalize",
    summary="the matrix that Sinkhorn's row and column scales stand for, normalised by row",
    spec_type=EngramSinkhornFinalizeSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, *SINKHORN_ROW_SOURCES),
    page=KernelPage(
        computes=(
            "For each row r, with |v| the square root of the sum of squares:\n\n"
            "    v[c]      = row_scale[r] * matrix[r, c] * col_scale[c]\n"
            "    out[r, c] = v[c] * (alpha / (|v| + eps))\n\n"
            "in fp32, squares included: they overflow from 2^64 on. NaN and infinities stay in their row."
        ),
        arguments={
            "matrix": "row-major fp32, the matrix that the iteration began with",
            "row_scale": "fp32, one per row, as engram_sinkhorn_step leaves it",
            "col_scale": "fp32, one per column",
            "out": "row-major fp32",
            "alpha": "norm of every row of the result",
        },
        tolerance="2^-18 of the value",
        facts=("Butterfingrz/TileKernels on github.com: tile_kernels/engram/engram_sinkhorn_kernel.py",),
        serves=("tile_kernels.engram.engram_sinkhorn_finalize",),
        examples=(EngramSinkhornFinalizeSpec(head_dim=1024),),
    ),
)
