"""engram_fused_weight: the product of the weights of both norms of the engram gate."""

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

COLUMN_BYTES = 2 + 2 + 4


class EngramFusedWeightSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="engram_fused_weight"
):
    """weight = weight_hidden * weight_embed in fp32.

    Arguments in call order: weight_hidden[streams, hidden], weight_embed[streams, hidden] bf16;
    weight[streams, hidden] fp32.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(64, 32768, multiple_of=64)]
    streams: Annotated[int, within(1, 8)] = 4

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 64, 32768, multiple_of=64)
        require_int(self.streams, "streams", 1, 8)


def parameters(spec: EngramFusedWeightSpec) -> tuple[Parameter, ...]:
    """What a call takes: both weights and their product."""
    shape = (spec.streams, spec.hidden)
    return (
        Parameter(name="weight_hidden", role="in", dtype="bf16", shape=shape),
        Parameter(name="weight_embed", role="in", dtype="bf16", shape=shape),
        Parameter(name="weight", role="out", dtype="fp32", shape=shape),
    )


def build(spec: EngramFusedWeightSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``."""
    columns, plan = plan_stream_columns(
        target, streams=spec.streams, hidden=spec.hidden, column_bytes=COLUMN_BYTES, field="hidden"
    )
    return BuiltKernel(
        prim_func=_program(spec, columns, plan, target.vector_cores),
        choices={"columns": columns, "stages": plan.stages, "why": plan.why},
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: EngramFusedWeightSpec, columns: int, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    entry = Entry("engram_fused_weight", parameters(spec))
    pieces = spec.hidden // columns

    @T.macro
    def load(state: Any, slot: Any, piece: Any, count: Any) -> None:
        call, left_ub, right_ub, _ = state
        at = T.truncmod(piece, pieces) * columns
        stream = T.truncdiv(piece, pieces)
        T.copy(call.weight_hidden[stream, at : at + columns], left_ub[slot, 0:columns])
        T.copy(call.weight_embed[stream, at : at + columns], right_ub[slot, 0:columns])

    @T.macro
    def compute(state: Any, slot: Any, piece: Any, count: Any) -> None:
        _, left_ub, right_ub, product_ub = state
        with T.SimdVF():
            for vector in T.serial(T.uint16(columns // VECTOR_LANES)):
                at = T.cast(vector, "int32") * VECTOR_LANES
                left, right = load_wide("bf16", left_ub, slot, at), load_wide("bf16", right_ub, slot, at)
                T.simd.vsts(product_ub[slot, at], T.simd.vmul(left, right))

    @T.macro
    def store(state: Any, slot: Any, piece: Any, count: Any) -> None:
        call, _, _, product_ub = state
        at = T.truncmod(piece, pieces) * columns
        T.copy(product_ub[slot, 0:columns], call.weight[T.truncdiv(piece, pieces), at : at + columns])

    run = row_pipeline(plan, cores, spec.streams * pieces, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            left_ub = T.alloc_shared((plan.stages, columns), "bfloat16")
            right_ub = T.alloc_shared((plan.stages, columns), "bfloat16")
            product_ub = T.alloc_shared((plan.stages, columns), "float32")
            run((call, left_ub, right_ub, product_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="engram_fused_weight",
    summary="product of the weights of both norms of the engram gate",
    spec_type=EngramFusedWeightSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, STREAM_COLUMN_SOURCE, WIDE_VALUE_SOURCE),
    page=KernelPage(
        computes="`weight = weight_hidden * weight_embed`, exact in fp32 unless it over- or underflows.",
        arguments={
            "weight_hidden": "weight of the norm of the streams",
            "weight_embed": "weight of the norm of the keys",
            "weight": "their product, as engram_gate takes it",
        },
        tolerance="bit-exact",
        facts=("Butterfingrz/TileKernels on github.com: tile_kernels/engram/engram_fused_weight_kernel.py",),
        serves=("tile_kernels.engram.fused_weight",),
        examples=(EngramFusedWeightSpec(hidden=7168),),
    ),
)
