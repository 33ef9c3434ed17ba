"""mhc_post_backward: the gradients of mhc_post."""

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


class MhcPostBackwardSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_post_backward"
):
    """Gradients of everything that mhc_post takes.

    Arguments in call order: y_grad[tokens, streams, hidden], x[tokens, hidden], residual like y_grad (bf16),
    post_mix[tokens, streams], comb_mix[tokens, streams, streams] (fp32), and the gradients of the last four:
    x_grad, residual_grad (bf16), post_mix_grad, comb_mix_grad (fp32).

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


def plan_of(spec: MhcPostBackwardSpec, target: Target) -> RowPlan:
    """The plan of tokens."""
    return plan_streams(target, _tensors(spec), hidden=spec.hidden, tokens=spec.tokens, passes=4.0)


def _tensors(spec: MhcPostBackwardSpec) -> tuple[StreamTensor | MixTensor, ...]:
    return (
        StreamTensor(name="y_grad", streams=spec.streams, read=True),
        StreamTensor(name="x", streams=1, read=True),
        StreamTensor(name="residual", streams=spec.streams, read=True),
        MixTensor(name="post_mix", values=spec.streams, read=True),
        MixTensor(name="comb_mix", values=spec.streams**2, read=True),
        StreamTensor(name="x_grad", streams=1, written=True, place="x"),
        StreamTensor(name="residual_grad", streams=spec.streams, written=True, place="residual"),
        MixTensor(name="post_mix_grad", values=spec.streams, written=True),
        MixTensor(name="comb_mix_grad", values=spec.streams**2, written=True),
    )


def parameters(spec: MhcPostBackwardSpec) -> tuple[Parameter, ...]:
    """What a call takes, in call order."""
    tokens = token_extent(spec.tokens)
    return (
        Parameter(name="y_grad", role="in", dtype="bf16", shape=(tokens, spec.streams, spec.hidden)),
        Parameter(name="x", role="in", dtype="bf16", shape=(tokens, spec.hidden)),
        Parameter(name="residual", role="in", dtype="bf16", shape=(tokens, spec.streams, spec.hidden)),
        Parameter(name="post_mix", role="in", dtype="fp32", shape=(tokens, spec.streams)),
        Parameter(name="comb_mix", role="in", dtype="fp32", shape=(tokens, spec.streams, spec.streams)),
        Parameter(name="x_grad", role="out", dtype="bf16", shape=(tokens, spec.hidden)),
        Parameter(name="residual_grad", role="out", dtype="bf16", shape=(tokens, spec.streams, spec.hidden)),
        Parameter(name="post_mix_grad", role="out", dtype="fp32", shape=(tokens, spec.streams)),
        Parameter(name="comb_mix_grad", role="out", dtype="fp32", shape=(tokens, spec.streams, spec.streams)),
    )


def build(spec: MhcPostBackwardSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a token does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcPostBackwardSpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    streams, vectors = spec.streams, spec.hidden // VECTOR_LANES

    @T.macro
    def compute(row: Any) -> None:
        products = T.simd.alloc_local((streams**2,), "float32")
        for i in range(streams**2):
            products[i] = T.simd.vdup(0.0, "float32")
        for turn in T.serial(T.uint16(vectors)):
            gradient = T.simd.alloc_local((streams,), "float32")
            for o in range(streams):
                gradient[o] = row.get("y_grad", o, T.cast(turn, "int32"))
            for i in range(streams):
                stream = T.simd.alloc_var("float32")
                stream = row.get("residual", i, T.cast(turn, "int32"))
                for o in range(streams):
                    T.simd.vmula(products[i * streams + o], gradient[o], stream)
        for i in range(streams**2):
            row.put_sum("comb_mix_grad", i, streams**2, products[i])
        post = T.simd.alloc_local((streams,), "float32")
        comb = T.simd.alloc_local((streams**2,), "float32")
        post_product = T.simd.alloc_local((streams,), "float32")
        for o in range(streams):
            post[o] = row.mix("post_mix", o, streams)
            post_product[o] = T.simd.vdup(0.0, "float32")
        for i in range(streams**2):
            comb[i] = row.mix("comb_mix", i, streams**2)
        # What is written replaces what the first loop has read, a vector at a time.
        for turn in T.serial(T.uint16(vectors)):
            gradient = T.simd.alloc_local((streams,), "float32")
            output = T.simd.alloc_var("float32")
            output = row.get("x", 0, T.cast(turn, "int32"))
            for o in range(streams):
                gradient[o] = row.get("y_grad", o, T.cast(turn, "int32"))
                T.simd.vmula(post_product[o], gradient[o], output)
            for i in range(streams + 1):
                total = T.simd.alloc_var("float32")
                total = T.simd.vmul(gradient[0], comb[i * streams] if i < streams else post[0])
                for o in range(1, streams):
                    T.simd.vmula(total, gradient[o], comb[i * streams + o] if i < streams else post[o])
                if i < streams:
                    row.put("residual_grad", i, T.cast(turn, "int32"), total)
                else:
                    row.put("x_grad", 0, T.cast(turn, "int32"), total)
        for o in range(streams):
            row.put_sum("post_mix_grad", o, streams, post_product[o])

    return stream_program(
        "mhc_post_backward",
        parameters(spec),
        plan,
        cores,
        token_extent(spec.tokens),
        spec.hidden,
        _tensors(spec),
        compute,
    )


FAMILY = Family(
    name="mhc_post_backward",
    summary="gradients of mhc_post",
    spec_type=MhcPostBackwardSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*STREAM_ROW_SOURCES, "kaas.kernel_library.vector.token_lanes"),
    page=KernelPage(
        computes=(
            "x_grad[t] = sum over o of y_grad[t, o] * post_mix[t, o]; residual_grad[t, i] = sum over "
            "o of y_grad[t, o] * comb_mix[t, i, o]; post_mix_grad[t, o] = sum over h of y_grad[t, o, "
            "h] * x[t, h]; comb_mix_grad[t, i, o] = sum over h of y_grad[t, o, h] * residual[t, i, "
            "h]. Sums are fp32: over streams ascending; over h 64 lanes ascending, then the lanes."
        ),
        arguments={
            "y_grad": "row-major",
            "x": "row-major",
            "residual": "row-major",
            "post_mix": "row-major",
            "comb_mix": "row-major",
            "x_grad": "row-major",
            "residual_grad": "row-major",
            "post_mix_grad": "row-major",
            "comb_mix_grad": "row-major",
        },
        tolerance="integers bit by bit; else one rounding to bf16 and 2^-20 of the summed magnitudes",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_post_bwd",),
        examples=(MhcPostBackwardSpec(hidden=7168),),
    ),
)
