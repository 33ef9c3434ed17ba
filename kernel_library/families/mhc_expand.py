"""mhc_expand: every residual stream starts as a copy of the embedding."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any

from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import Dim, KernelSpec, require_dim
from kaas.kernel_library.vector.mhc_fields import Hidden, Streams, require_hidden, require_streams
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import RowPlan
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


class MhcExpandSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_expand"):
    """Copies of x[tokens, hidden] in ``streams`` streams: y[tokens, streams, hidden], bf16.

    Arguments in call order: x, y.

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


def plan_of(spec: MhcExpandSpec, target: Target) -> RowPlan:
    """The plan of tokens."""
    return plan_streams(target, _tensors(spec), hidden=spec.hidden, tokens=spec.tokens, passes=2.0)


def _tensors(spec: MhcExpandSpec) -> tuple[StreamTensor | MixTensor, ...]:
    return (
        StreamTensor(name="x", streams=1, read=True),
        StreamTensor(name="y", streams=spec.streams, written=True, place="x"),
    )


def parameters(spec: MhcExpandSpec) -> tuple[Parameter, ...]:
    """What a call takes, in call order."""
    tokens = token_extent(spec.tokens)
    return (
        Parameter(name="x", role="in", dtype="bf16", shape=(tokens, spec.hidden)),
        Parameter(name="y", role="out", dtype="bf16", shape=(tokens, spec.streams, spec.hidden)),
    )


def build(spec: MhcExpandSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a token does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcExpandSpec, plan: RowPlan, cores: int) -> Any:
    return stream_program(
        "mhc_expand",
        parameters(spec),
        plan,
        cores,
        token_extent(spec.tokens),
        spec.hidden,
        _tensors(spec),
        None,
    )


FAMILY = Family(
    name="mhc_expand",
    summary="every residual stream as a copy of the embedding",
    spec_type=MhcExpandSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*STREAM_ROW_SOURCES, "kaas.kernel_library.vector.token_lanes"),
    page=KernelPage(
        computes="y[t, m] = x[t] for every stream m: moved, not computed, so that all bits stay.",
        arguments={
            "x": "row-major",
            "y": "row-major",
        },
        tolerance="bit by bit",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.expand_to_mhc_fwd",),
        examples=(MhcExpandSpec(hidden=7168),),
    ),
)
