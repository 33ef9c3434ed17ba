"""engram_sinkhorn_momentum: the optimiser's momentum and what Sinkhorn's iteration begins with."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DTYPE_BYTES,
    DYNAMIC,
    Dim,
    KernelSpec,
    require_bool,
    require_dim,
    require_float,
    require_one_of,
    within,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowPlan, RowTile, plan_rows, require_row_tile
from kaas.kernel_library.vector.wide_values import TILELANG_DTYPE, WIDE_VALUE_SOURCE, load_wide, store_wide
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MomentumDtype = Literal["fp32", "bf16"]
MOMENTUM_DTYPES: tuple[MomentumDtype, ...] = ("fp32", "bf16")
WIDTH = 256
"""Elements of a row: any number of elements that is a multiple of this can be looked at as rows."""


class EngramSinkhornMomentumSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="engram_sinkhorn_momentum"
):
    """Momentum m = beta1 * m + (1 - beta1) * grad in place, and m or its Nesterov form in fp32.

    Arguments in call order: grad[rows, 256] of ``dtype``; momentum_buffer[rows, 256] of ``momentum_dtype``,
    updated in place; sinkhorn_input[rows, 256] fp32. ``beta1`` is compiled in.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    dtype: MomentumDtype = "fp32"
    momentum_dtype: MomentumDtype = "fp32"
    beta1: Annotated[float, within(0.0, 1.0)] = 0.9
    nesterov: bool = True
    rows: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_one_of(self.dtype, "dtype", MOMENTUM_DTYPES)
        require_one_of(self.momentum_dtype, "momentum_dtype", MOMENTUM_DTYPES)
        require_float(self.beta1, "beta1", 0.0, 1.0)
        require_bool(self.nesterov, "nesterov")
        require_dim(self.rows, "rows")
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the spec's own tile does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: EngramSinkhornMomentumSpec, target: Target) -> RowPlan:
    """The row plan: a stage holds gradients, momentum and the result."""
    return plan_rows(
        target,
        row_bytes=WIDTH * (DTYPE_BYTES[spec.dtype] + DTYPE_BYTES[spec.momentum_dtype] + 4),
        rows=None if spec.rows == DYNAMIC else int(spec.rows),
        passes=1.0,
        what=f"a row of {WIDTH} elements",
        field="tile",
        given=spec.tile,
    )


def build(spec: EngramSinkhornMomentumSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: EngramSinkhornMomentumSpec) -> tuple[Parameter, ...]:
    """What a call takes: gradient, momentum and result."""
    rows: Extent = "rows" if spec.rows == DYNAMIC else spec.rows
    return (
        Parameter(name="grad", role="in", dtype=spec.dtype, shape=(rows, WIDTH)),
        Parameter(name="momentum_buffer", role="inout", dtype=spec.momentum_dtype, shape=(rows, WIDTH)),
        Parameter(name="sinkhorn_input", role="out", dtype="fp32", shape=(rows, WIDTH)),
    )


def _program(spec: EngramSinkhornMomentumSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``."""
    import tilelang.ascend.language as T

    entry = Entry("engram_sinkhorn_momentum", parameters(spec))
    rows = entry.extent("rows" if spec.rows == DYNAMIC else spec.rows)

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, grad_ub, momentum_ub, _ = state
        T.copy(call.grad[first : first + count, 0:WIDTH], grad_ub[slot, 0:count, 0:WIDTH])
        T.copy(call.momentum_buffer[first : first + count, 0:WIDTH], momentum_ub[slot, 0:count, 0:WIDTH])

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, grad_ub, momentum_ub, result_ub = state
        with T.SimdVF():
            momentum = T.simd.alloc_local((1,), "float32")
            ahead = T.simd.alloc_local((1,), "float32")
            beta = T.simd.vdup(T.float32(spec.beta1), "float32")
            for row in T.serial(T.cast(count, "uint16")):
                for vector in T.unroll(WIDTH // VECTOR_LANES, explicit=True):
                    at = (slot, T.cast(row, "int32"), vector * VECTOR_LANES)
                    share = T.simd.vmuls(load_wide(spec.dtype, grad_ub, *at), T.float32(1.0 - spec.beta1))
                    momentum[0] = share
                    T.simd.vmula(momentum[0], beta, load_wide(spec.momentum_dtype, momentum_ub, *at))
                    store_wide(spec.momentum_dtype, momentum_ub, momentum[0], *at)
                    if spec.nesterov:
                        ahead[0] = share
                        T.simd.vmula(ahead[0], beta, momentum[0])
                        T.simd.vsts(result_ub[at], ahead[0])
                    else:
                        T.simd.vsts(result_ub[at], momentum[0])

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, _, momentum_ub, result_ub = state
        T.copy(momentum_ub[slot, 0:count, 0:WIDTH], call.momentum_buffer[first : first + count, 0:WIDTH])
        T.copy(result_ub[slot, 0:count, 0:WIDTH], call.sinkhorn_input[first : first + count, 0:WIDTH])

    run = row_pipeline(plan, cores, rows, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            ring = (plan.stages, plan.rows, WIDTH)
            grad_ub = T.alloc_shared(ring, TILELANG_DTYPE[spec.dtype])
            momentum_ub = T.alloc_shared(ring, TILELANG_DTYPE[spec.momentum_dtype])
            result_ub = T.alloc_shared(ring, "float32")
            run((call, grad_ub, momentum_ub, result_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="engram_sinkhorn_momentum",
    summary="the optimiser's momentum in place, and the fp32 matrix that Sinkhorn's iteration begins with",
    spec_type=EngramSinkhornMomentumSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, WIDE_VALUE_SOURCE),
    page=KernelPage(
        computes=(
            "Element by element, in fp32:\n\n"
            "    m               = beta1 * momentum_buffer + (1 - beta1) * grad\n"
            "    momentum_buffer = m, rounded once\n"
            "    sinkhorn_input  = beta1 * m + (1 - beta1) * grad, or m without `nesterov`\n\n"
            "`sinkhorn_input` is made from m before rounding. 1 - beta1 is rounded to fp32 once."
        ),
        arguments={
            "grad": "gradient; its elements are looked at as rows of 256",
            "momentum_buffer": "momentum, updated in place",
            "sinkhorn_input": "fp32, the matrix for engram_sinkhorn_step",
        },
        tolerance="2^-21 of the larger summand, then one rounding to the dtype",
        facts=("Butterfingrz/TileKernels on github.com: tile_kernels/engram/engram_sinkhorn_kernel.py",),
        serves=("tile_kernels.engram.engram_sinkhorn_momentum_update",),
        examples=(
            EngramSinkhornMomentumSpec(),
            EngramSinkhornMomentumSpec(dtype="bf16", momentum_dtype="bf16", nesterov=False),
        ),
    ),
)
