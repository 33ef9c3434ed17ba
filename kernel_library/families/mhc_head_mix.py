"""mhc_head_mix: the mix that joins the residual streams in front of the output head."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any

from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import Dim, Epsilon, KernelSpec, require_dim, require_epsilon
from kaas.kernel_library.vector.mhc_fields import Streams, require_streams
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import RowPlan
from kaas.kernel_library.vector.token_lanes import (
    TOKEN_LANE_SOURCES,
    Constant,
    LaneTensor,
    lane_program,
    plan_token_blocks,
    sigmoid,
    token_extent,
)
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class MhcHeadMixSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_head_mix"):
    """sigmoid(logit * scale + base) + eps for each stream of a token, fp32.

    Arguments in call order: logits[tokens, streams], scale[1], base[streams], mix[tokens, streams]. ``eps``
    is compiled in.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    streams: Streams = 4
    eps: Epsilon = 1e-6
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_streams(self.streams)
        require_epsilon(self.eps, "eps")
        require_dim(self.tokens, "tokens")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a block of tokens does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MhcHeadMixSpec, target: Target) -> RowPlan:
    """The plan of token blocks."""
    return plan_token_blocks(target, _tensors(spec), _constants(spec), tokens=spec.tokens)


def _tensors(spec: MhcHeadMixSpec) -> tuple[LaneTensor, ...]:
    return (
        LaneTensor(name="logits", values=spec.streams),
        LaneTensor(name="mix", values=spec.streams, written=True),
    )


def _constants(spec: MhcHeadMixSpec) -> tuple[Constant, ...]:
    return (Constant(name="scale", values=1), Constant(name="base", values=spec.streams))


def parameters(spec: MhcHeadMixSpec) -> tuple[Parameter, ...]:
    """What a call takes: logits, scale, base, mix."""
    rows = (token_extent(spec.tokens), spec.streams)
    return (
        Parameter(name="logits", role="in", dtype="fp32", shape=rows),
        Parameter(name="scale", role="in", dtype="fp32", shape=(1,)),
        Parameter(name="base", role="in", dtype="fp32", shape=(spec.streams,)),
        Parameter(name="mix", role="out", dtype="fp32", shape=rows),
    )


def build(spec: MhcHeadMixSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a block does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcHeadMixSpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    @T.macro
    def compute(lanes: Any) -> None:
        for i in range(spec.streams):
            scaled = T.simd.vmul(lanes.get("logits", i), lanes.constant("scale", 0))
            level = sigmoid(T.simd.vadd(scaled, lanes.constant("base", i)))
            lanes.put("mix", i, T.simd.vadds(level, spec.eps))

    tokens = token_extent(spec.tokens)
    return lane_program(
        "mhc_head_mix", parameters(spec), plan, cores, tokens, _tensors(spec), compute, _constants(spec)
    )


FAMILY = Family(
    name="mhc_head_mix",
    summary="the mix that joins the residual streams in front of the output head",
    spec_type=MhcHeadMixSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TOKEN_LANE_SOURCES, "kaas.kernel_library.vector.mhc_fields"),
    page=KernelPage(
        computes=(
            "mix[t, m] = sigmoid(logits[t, m] * scale + base[m]) + eps, in fp32, "
            "rounded after every operation."
        ),
        arguments={
            "logits": "row-major: one logit per stream",
            "scale": "one factor for all logits",
            "base": "one offset per stream",
            "mix": "row-major",
        },
        tolerance="2^-20 of the value",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_head_compute_mix_fwd",),
        examples=(MhcHeadMixSpec(),),
    ),
)
