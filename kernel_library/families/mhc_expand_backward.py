"""mhc_expand_backward: the gradient of mhc_expand."""

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
from kaas.kernel_library.vector.token_lanes import summed, token_extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class MhcExpandBackwardSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_expand_backward"
):
    """x_grad[tokens, hidden], the sum of y_grad[tokens, streams, hidden] over the streams, bf16.

    Arguments in call order: y_grad, x_grad. Summed in fp32 with ascending stream, rounded once.

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


def plan_of(spec: MhcExpandBackwardSpec, target: Target) -> RowPlan:
    """The plan of tokens."""
    return plan_streams(target, _tensors(spec), hidden=spec.hidden, tokens=spec.tokens, passes=2.0)


def _tensors(spec: MhcExpandBackwardSpec) -> tuple[StreamTensor | MixTensor, ...]:
    return (
        StreamTensor(name="y_grad", streams=spec.streams, read=True),
        StreamTensor(name="x_grad", streams=1, written=True),
    )


def parameters(spec: MhcExpandBackwardSpec) -> tuple[Parameter, ...]:
    """What a call takes, in call order."""
    tokens = token_extent(spec.tokens)
    return (
        Parameter(name="y_grad", role="in", dtype="bf16", shape=(tokens, spec.streams, spec.hidden)),
        Parameter(name="x_grad", role="out", dtype="bf16", shape=(tokens, spec.hidden)),
    )


def build(spec: MhcExpandBackwardSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a token does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcExpandBackwardSpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    streams, vectors = spec.streams, spec.hidden // VECTOR_LANES

    @T.macro
    def compute(row: Any) -> None:
        for turn in T.serial(T.uint16(vectors)):
            vector = T.cast(turn, "int32")
            total = summed([row.get("y_grad", m, vector) for m in range(streams)])
            row.put("x_grad", 0, vector, total)

    return stream_program(
        "mhc_expand_backward",
        parameters(spec),
        plan,
        cores,
        token_extent(spec.tokens),
        spec.hidden,
        _tensors(spec),
        compute,
    )


FAMILY = Family(
    name="mhc_expand_backward",
    summary="gradient of mhc_expand: the sum over the residual streams",
    spec_type=MhcExpandBackwardSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*STREAM_ROW_SOURCES, "kaas.kernel_library.vector.token_lanes"),
    page=KernelPage(
        computes="x_grad[t] = sum over m of y_grad[t, m], in fp32 with ascending m, rounded to bf16 once.",
        arguments={
            "y_grad": "row-major",
            "x_grad": "row-major",
        },
        tolerance=(
            "bit by bit for values whose sum is exact in fp32; else one rounding to bf16 and 2^-20 of"
            " the summed magnitudes"
        ),
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.expand_to_mhc_bwd",),
        examples=(MhcExpandBackwardSpec(hidden=7168),),
    ),
)
