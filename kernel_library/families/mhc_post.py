"""mhc_post: the output of a layer joined with the mixed residual streams."""

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


class MhcPostSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_post"):
    """y[t, o] = x[t] * post_mix[t, o] + sum over i of comb_mix[t, i, o] * residual[t, i].

    Arguments in call order: x[tokens, hidden], residual[tokens, streams, hidden] (bf16), post_mix[tokens,
    streams], comb_mix[tokens, streams, streams] (fp32), y like residual.

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


def plan_of(spec: MhcPostSpec, target: Target) -> RowPlan:
    """The plan of tokens."""
    return plan_streams(target, _tensors(spec), hidden=spec.hidden, tokens=spec.tokens, passes=3.0)


def _tensors(spec: MhcPostSpec) -> tuple[StreamTensor | MixTensor, ...]:
    return (
        StreamTensor(name="x", streams=1, read=True),
        StreamTensor(name="residual", streams=spec.streams, read=True),
        MixTensor(name="post_mix", values=spec.streams, read=True),
        MixTensor(name="comb_mix", values=spec.streams**2, read=True),
        StreamTensor(name="y", streams=spec.streams, written=True, place="residual"),
    )


def parameters(spec: MhcPostSpec) -> tuple[Parameter, ...]:
    """What a call takes, in call order."""
    tokens = token_extent(spec.tokens)
    return (
        Parameter(name="x", role="in", dtype="bf16", shape=(tokens, spec.hidden)),
        Parameter(name="residual", role="in", dtype="bf16", shape=(tokens, spec.streams, spec.hidden)),
        Parameter(name="post_mix", role="in", dtype="fp32", shape=(tokens, spec.streams)),
        Parameter(name="comb_mix", role="in", dtype="fp32", shape=(tokens, spec.streams, spec.streams)),
        Parameter(name="y", role="out", dtype="bf16", shape=(tokens, spec.streams, spec.hidden)),
    )


def build(spec: MhcPostSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a token does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcPostSpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    streams, vectors = spec.streams, spec.hidden // VECTOR_LANES

    @T.macro
    def compute(row: Any) -> None:
        post = T.simd.alloc_local((streams,), "float32")
        comb = T.simd.alloc_local((streams**2,), "float32")
        for o in range(streams):
            post[o] = row.mix("post_mix", o, streams)
        for i in range(streams**2):
            comb[i] = row.mix("comb_mix", i, streams**2)
        for turn in T.serial(T.uint16(vectors)):
            vector = T.cast(turn, "int32")
            stream = T.simd.alloc_local((streams,), "float32")
            output = T.simd.alloc_var("float32")
            output = row.get("x", 0, vector)
            for i in range(streams):
                stream[i] = row.get("residual", i, vector)
            for o in range(streams):
                total = T.simd.alloc_var("float32")
                total = T.simd.vmul(output, post[o])
                for i in range(streams):
                    T.simd.vmula(total, stream[i], comb[i * streams + o])
                row.put("y", o, vector, total)

    return stream_program(
        "mhc_post",
        parameters(spec),
        plan,
        cores,
        token_extent(spec.tokens),
        spec.hidden,
        _tensors(spec),
        compute,
    )


FAMILY = Family(
    name="mhc_post",
    summary="output of a layer joined with the mixed residual streams",
    spec_type=MhcPostSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*STREAM_ROW_SOURCES, "kaas.kernel_library.vector.token_lanes"),
    page=KernelPage(
        computes=(
            "y[t, o] = x[t] * post_mix[t, o] + sum over i of comb_mix[t, i, o] * residual[t, i], in "
            "fp32 with ascending i, rounded to bf16 once."
        ),
        arguments={
            "x": "row-major, what the layer gave",
            "residual": "row-major",
            "post_mix": "row-major",
            "comb_mix": "row-major; rows are the streams that come in",
            "y": "row-major",
        },
        tolerance="integers bit by bit; else one rounding to bf16 and 2^-20 of the summed magnitudes",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_post_fwd",),
        examples=(MhcPostSpec(hidden=7168),),
    ),
)
