"""mhc_pre_apply: the residual streams of a token mixed into the input of a layer."""

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


class MhcPreApplySpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_pre_apply"):
    """y[tokens, hidden] = the sum of x[tokens, streams, hidden] over the streams, weighted by mix.

    Arguments in call order: x (bf16), mix[tokens, streams] (fp32), y (bf16).

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


def plan_of(spec: MhcPreApplySpec, target: Target) -> RowPlan:
    """The plan of tokens."""
    return plan_streams(target, _tensors(spec), hidden=spec.hidden, tokens=spec.tokens, passes=2.0)


def _tensors(spec: MhcPreApplySpec) -> tuple[StreamTensor | MixTensor, ...]:
    return (
        StreamTensor(name="x", streams=spec.streams, read=True),
        MixTensor(name="mix", values=spec.streams, read=True),
        StreamTensor(name="y", streams=1, written=True, place="x"),
    )


def parameters(spec: MhcPreApplySpec) -> tuple[Parameter, ...]:
    """What a call takes, in call order."""
    tokens = token_extent(spec.tokens)
    return (
        Parameter(name="x", role="in", dtype="bf16", shape=(tokens, spec.streams, spec.hidden)),
        Parameter(name="mix", role="in", dtype="fp32", shape=(tokens, spec.streams)),
        Parameter(name="y", role="out", dtype="bf16", shape=(tokens, spec.hidden)),
    )


def build(spec: MhcPreApplySpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a token does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcPreApplySpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    streams, vectors = spec.streams, spec.hidden // VECTOR_LANES

    @T.macro
    def compute(row: Any) -> None:
        mix = T.simd.alloc_local((streams,), "float32")
        for m in range(streams):
            mix[m] = row.mix("mix", m, streams)
        for turn in T.serial(T.uint16(vectors)):
            vector = T.cast(turn, "int32")
            total = T.simd.alloc_var("float32")
            total = T.simd.vmul(row.get("x", 0, vector), mix[0])
            for m in range(1, streams):
                T.simd.vmula(total, row.get("x", m, vector), mix[m])
            row.put("y", 0, vector, total)

    return stream_program(
        "mhc_pre_apply",
        parameters(spec),
        plan,
        cores,
        token_extent(spec.tokens),
        spec.hidden,
        _tensors(spec),
        compute,
    )


FAMILY = Family(
    name="mhc_pre_apply",
    summary="residual streams of a token mixed into the input of a layer",
    spec_type=MhcPreApplySpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*STREAM_ROW_SOURCES, "kaas.kernel_library.vector.token_lanes"),
    page=KernelPage(
        computes=(
            "y[t] = sum over m of mix[t, m] * x[t, m], in fp32 with ascending m, rounded to bf16 once."
        ),
        arguments={
            "x": "row-major",
            "mix": "row-major",
            "y": "row-major",
        },
        tolerance="integers bit by bit; else one rounding to bf16 and 2^-20 of the summed magnitudes",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_pre_apply_mix_fwd",),
        examples=(MhcPreApplySpec(hidden=7168),),
    ),
)
