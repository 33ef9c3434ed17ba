"""engram_weight_gradient: gradients of both norms' weights of the engram gate, from partial sums."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import KernelSpec, require_int, within
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowPlan
from kaas.kernel_library.vector.stream_columns import STREAM_COLUMN_SOURCE, plan_stream_columns
from kaas.kernel_library.vector.wide_values import WIDE_VALUE_SOURCE, load_wide
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

GRADIENTS = ("grad_weight_hidden", "grad_weight_embed")
WEIGHTS = ("weight_embed", "weight_hidden")
"""The factor of each gradient is the other weight."""


class EngramWeightGradientSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="engram_weight_gradient"
):
    """Both gradients, added to: with G the sum of the partial sums, G*weight_embed and G*weight_hidden.

    Arguments in call order: grad_weight_partial[partials, streams, hidden] fp32;
    weight_hidden[streams, hidden], weight_embed[streams, hidden] bf16;
    grad_weight_hidden[streams, hidden], grad_weight_embed[streams, hidden] fp32, updated in place.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(64, 32768, multiple_of=64)]
    streams: Annotated[int, within(1, 8)] = 4
    partials: Annotated[int, within(1, 1024)] = 16

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 64, 32768, multiple_of=64)
        require_int(self.streams, "streams", 1, 8)
        require_int(self.partials, "partials", 1, 1024)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if 64 columns of all partial sums do not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: EngramWeightGradientSpec, target: Target) -> tuple[int, RowPlan]:
    """Columns of a piece and the plan of pieces."""
    return plan_stream_columns(
        target,
        streams=spec.streams,
        hidden=spec.hidden,
        column_bytes=4 * spec.partials + 2 * 2 + 2 * 4,
        field="partials",
    )


def parameters(spec: EngramWeightGradientSpec) -> tuple[Parameter, ...]:
    """What a call takes: partial sums, both weights, both gradients."""
    shape = (spec.streams, spec.hidden)
    return (
        Parameter(name="grad_weight_partial", role="in", dtype="fp32", shape=(spec.partials, *shape)),
        Parameter(name="weight_hidden", role="in", dtype="bf16", shape=shape),
        Parameter(name="weight_embed", role="in", dtype="bf16", shape=shape),
        *(Parameter(name=name, role="inout", dtype="fp32", shape=shape) for name in GRADIENTS),
    )


def build(spec: EngramWeightGradientSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` with too many partial sums."""
    columns, plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, columns, plan, target.vector_cores),
        choices={"columns": columns, "stages": plan.stages, "why": plan.why},
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: EngramWeightGradientSpec, columns: int, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: all partial sums of a piece come to UB and are added in order."""
    import tilelang.ascend.language as T

    entry = Entry("engram_weight_gradient", parameters(spec))
    pieces, partials = spec.hidden // columns, spec.partials

    @T.macro
    def load(state: Any, slot: Any, piece: Any, count: Any) -> None:
        call, partial_ub, weight_ub, gradient_ub = state
        at = T.truncmod(piece, pieces) * columns
        stream = T.truncdiv(piece, pieces)
        T.copy(
            call.grad_weight_partial[0:partials, stream, at : at + columns],
            partial_ub[slot, 0:partials, 0:columns],
        )
        for side, name in enumerate(WEIGHTS):
            T.copy(getattr(call, name)[stream, at : at + columns], weight_ub[slot, side, 0:columns])
        for side, name in enumerate(GRADIENTS):
            T.copy(getattr(call, name)[stream, at : at + columns], gradient_ub[slot, side, 0:columns])

    @T.macro
    def compute(state: Any, slot: Any, piece: Any, count: Any) -> None:
        _, partial_ub, weight_ub, gradient_ub = state
        with T.SimdVF():
            total = T.simd.alloc_local((2,), "float32")
            for vector in T.serial(T.uint16(columns // VECTOR_LANES)):
                at = T.cast(vector, "int32") * VECTOR_LANES
                total[0] = T.simd.vld(partial_ub[slot, 0, at])
                if partials > 1:
                    for partial in T.serial(T.uint16(partials - 1)):
                        row = T.cast(partial, "int32") + 1
                        total[0] = T.simd.vadd(total[0], T.simd.vld(partial_ub[slot, row, at]))
                for side in T.unroll(2, explicit=True):
                    total[1] = T.simd.vld(gradient_ub[slot, side, at])
                    T.simd.vmula(total[1], total[0], load_wide("bf16", weight_ub, slot, side, at))
                    T.simd.vsts(gradient_ub[slot, side, at], total[1])

    @T.macro
    def store(state: Any, slot: Any, piece: Any, count: Any) -> None:
        call, _, _, gradient_ub = state
        at = T.truncmod(piece, pieces) * columns
        stream = T.truncdiv(piece, pieces)
        for side, name in enumerate(GRADIENTS):
            T.copy(gradient_ub[slot, side, 0:columns], getattr(call, name)[stream, at : at + columns])

    run = row_pipeline(plan, cores, spec.streams * pieces, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            partial_ub = T.alloc_shared((plan.stages, partials, columns), "float32")
            weight_ub = T.alloc_shared((plan.stages, 2, columns), "bfloat16")
            gradient_ub = T.alloc_shared((plan.stages, 2, columns), "float32")
            run((call, partial_ub, weight_ub, gradient_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="engram_weight_gradient",
    summary="gradients of both norms' weights of the engram gate, from partial sums",
    spec_type=EngramWeightGradientSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, STREAM_COLUMN_SOURCE, WIDE_VALUE_SOURCE),
    page=KernelPage(
        computes=(
            "With `G = sum over p of grad_weight_partial[p]`, added in fp32 in ascending p:\n\n"
            "    grad_weight_hidden += G * weight_embed\n"
            "    grad_weight_embed  += G * weight_hidden\n\n"
            "each one fused multiply-add."
        ),
        arguments={
            "grad_weight_partial": "partial sums over tokens, as engram_gate_backward makes them",
            "weight_hidden": "weight of the norm of the streams",
            "weight_embed": "weight of the norm of the keys",
            "grad_weight_hidden": "gradient of weight_hidden, added to",
            "grad_weight_embed": "gradient of weight_embed, added to",
        },
        tolerance="calc_diff below 1e-10 against float64; bit-exact on small integers",
        facts=("Butterfingrz/TileKernels on github.com: tile_kernels/engram/engram_grad_w_reduce_kernel.py",),
        serves=("tile_kernels.engram.grad_w_reduce",),
        examples=(EngramWeightGradientSpec(hidden=7168),),
    ),
)
