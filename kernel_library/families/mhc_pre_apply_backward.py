"""mhc_pre_apply_backward: the gradients of mhc_pre_apply; that of x is added to."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any

from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import Dim, KernelSpec, require_dim
from kaas.kernel_library.vector.mhc_fields import Hidden, Streams, require_hidden, require_streams
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowPlan
from kaas.kernel_library.vector.stream_rows import (
    STREAM_ROW_SOURCES,
    MixTensor,
    StreamTensor,
    plan_streams,
    stream_program,
)
from kaas.kernel_library.vector.token_lanes import token_extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class MhcPreApplyBackwardSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_pre_apply_backward"
):
    """x_grad += mix * y_grad, and mix_grad = the product of y_grad and x summed over hidden.

    Arguments in call order: y_grad[tokens, hidden], x[tokens, streams, hidden] (bf16), mix[tokens, streams]
    (fp32), x_grad like x (updated in place, rounded once), mix_grad[tokens, streams] (fp32).

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Hidden
    streams: Streams = 4
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_hidden(self.hidden)
        require_streams(self.streams)
        require_dim(self.tokens, "tokens")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a token does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MhcPreApplyBackwardSpec, target: Target) -> RowPlan:
    """The plan of tokens."""
    return plan_streams(target, _tensors(spec), hidden=spec.hidden, tokens=spec.tokens, passes=3.0)


def _tensors(spec: MhcPreApplyBackwardSpec) -> tuple[StreamTensor | MixTensor, ...]:
    return (
        StreamTensor(name="y_grad", streams=1, read=True),
        StreamTensor(name="x", streams=spec.streams, read=True),
        MixTensor(name="mix", values=spec.streams, read=True),
        StreamTensor(name="x_grad", streams=spec.streams, read=True, written=True),
        MixTensor(name="mix_grad", values=spec.streams, written=True),
    )


def parameters(spec: MhcPreApplyBackwardSpec) -> tuple[Parameter, ...]:
    """What a call takes, in call order."""
    tokens = token_extent(spec.tokens)
    return (
        Parameter(name="y_grad", role="in", dtype="bf16", shape=(tokens, spec.hidden)),
        Parameter(name="x", role="in", dtype="bf16", shape=(tokens, spec.streams, spec.hidden)),
        Parameter(name="mix", role="in", dtype="fp32", shape=(tokens, spec.streams)),
        Parameter(name="x_grad", role="inout", dtype="bf16", shape=(tokens, spec.streams, spec.hidden)),
        Parameter(name="mix_grad", role="out", dtype="fp32", shape=(tokens, spec.streams)),
    )


def build(spec: MhcPreApplyBackwardSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a token does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcPreApplyBackwardSpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    streams, vectors = spec.streams, spec.hidden // VECTOR_LANES

    @T.macro
    def compute(row: Any) -> None:
        mix = T.simd.alloc_local((streams,), "float32")
        product = T.simd.alloc_local((streams,), "float32")
        for m in range(streams):
            mix[m] = row.mix("mix", m, streams)
            product[m] = T.simd.vdup(0.0, "float32")
        for turn in T.serial(T.uint16(vectors)):
            vector = T.cast(turn, "int32")
            gradient = T.simd.alloc_var("float32")
            gradient = row.get("y_grad", 0, vector)
            for m in range(streams):
                total = T.simd.alloc_var("float32")
                total = row.get("x_grad", m, vector)
                T.simd.vmula(total, gradient, mix[m])
                row.put("x_grad", m, vector, total)
                T.simd.vmula(product[m], gradient, row.get("x", m, vector))
        for m in range(streams):
            row.put_sum("mix_grad", m, streams, product[m])

    return stream_program(
        "mhc_pre_apply_backward",
        parameters(spec),
        plan,
        cores,
        token_extent(spec.tokens),
        spec.hidden,
        _tensors(spec),
        compute,
    )


FAMILY = Family(
    name="mhc_pre_apply_backward",
    summary="gradients of mhc_pre_apply; that of the streams is added to what is there",
    spec_type=MhcPreApplyBackwardSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*STREAM_ROW_SOURCES, "kaas.kernel_library.vector.token_lanes"),
    page=KernelPage(
        computes=(
            "x_grad[t, m] += mix[t, m] * y_grad[t], rounded to bf16 once; mix_grad[t, m] = sum over h"
            " of y_grad[t, h] * x[t, m, h] in fp32: 64 lanes with ascending h, then the lanes."
        ),
        arguments={
            "y_grad": "row-major",
            "x": "row-major, the input of the forward kernel",
            "mix": "row-major",
            "x_grad": "row-major; updated in place",
            "mix_grad": "row-major",
        },
        tolerance="integers bit by bit; else one rounding to bf16 and 2^-20 of the summed magnitudes",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_pre_apply_mix_bwd",),
        examples=(MhcPreApplyBackwardSpec(hidden=7168),),
    ),
)
