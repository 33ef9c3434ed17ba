"""mhc_head_mix_backward: the gradients of mhc_head_mix; those of scale and base per block of 64 tokens."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any

from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import Dim, KernelSpec, require_dim
from kaas.kernel_library.vector.mhc_fields import Streams, require_streams
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import RowPlan
from kaas.kernel_library.vector.token_lanes import (
    TOKEN_LANE_SOURCES,
    Constant,
    LaneTensor,
    block_extent,
    lane_program,
    plan_token_blocks,
    sigmoid,
    token_extent,
)
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class MhcHeadMixBackwardSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_head_mix_backward"
):
    """Gradients of mhc_head_mix with the same ``streams``, fp32.

    Arguments in call order: mix_grad[tokens, streams], logits[tokens, streams], scale[1], base[streams],
    logits_grad like logits, and the sums over each block of 64 tokens: scale_grad[ceil(tokens/64), 1],
    base_grad[ceil(tokens/64), streams].

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    streams: Streams = 4
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_streams(self.streams)
        require_dim(self.tokens, "tokens")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a block of tokens does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MhcHeadMixBackwardSpec, target: Target) -> RowPlan:
    """The plan of token blocks."""
    return plan_token_blocks(target, _tensors(spec), _constants(spec), tokens=spec.tokens)


def _tensors(spec: MhcHeadMixBackwardSpec) -> tuple[LaneTensor, ...]:
    streams = spec.streams
    return (
        LaneTensor(name="mix_grad", values=streams),
        LaneTensor(name="logits", values=streams),
        LaneTensor(name="logits_grad", values=streams, written=True),
        LaneTensor(name="scale_grad", values=1, written=True, per_block=True),
        LaneTensor(name="base_grad", values=streams, written=True, per_block=True),
    )


def _constants(spec: MhcHeadMixBackwardSpec) -> tuple[Constant, ...]:
    return (Constant(name="scale", values=1), Constant(name="base", values=spec.streams))


def parameters(spec: MhcHeadMixBackwardSpec) -> tuple[Parameter, ...]:
    """What a call takes: mix_grad, logits, scale, base, and the gradients of these three."""
    rows, blocks = (token_extent(spec.tokens), spec.streams), block_extent(spec.tokens)
    return (
        Parameter(name="mix_grad", role="in", dtype="fp32", shape=rows),
        Parameter(name="logits", role="in", dtype="fp32", shape=rows),
        Parameter(name="scale", role="in", dtype="fp32", shape=(1,)),
        Parameter(name="base", role="in", dtype="fp32", shape=(spec.streams,)),
        Parameter(name="logits_grad", role="out", dtype="fp32", shape=rows),
        Parameter(name="scale_grad", role="out", dtype="fp32", shape=(blocks, 1)),
        Parameter(name="base_grad", role="out", dtype="fp32", shape=(blocks, spec.streams)),
    )


def build(spec: MhcHeadMixBackwardSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a block does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcHeadMixBackwardSpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    @T.macro
    def compute(lanes: Any) -> None:
        one = T.simd.vdup(1.0, "float32")
        of_scale = T.simd.alloc_var("float32")
        of_scale = T.simd.vdup(0.0, "float32")
        for i in range(spec.streams):
            logit = T.simd.alloc_var("float32")
            level = T.simd.alloc_var("float32")
            gradient = T.simd.alloc_var("float32")
            logit = lanes.get("logits", i)
            level = T.simd.vadd(T.simd.vmul(logit, lanes.constant("scale", 0)), lanes.constant("base", i))
            level = sigmoid(level)
            gradient = T.simd.vmul(lanes.get("mix_grad", i), T.simd.vmul(level, T.simd.vsub(one, level)))
            lanes.put("logits_grad", i, T.simd.vmul(gradient, lanes.constant("scale", 0)))
            lanes.put_sum("base_grad", i, gradient)
            of_scale = T.simd.vadd(of_scale, T.simd.vmul(gradient, logit))
        lanes.put_sum("scale_grad", 0, of_scale)

    return lane_program(
        "mhc_head_mix_backward",
        parameters(spec),
        plan,
        cores,
        token_extent(spec.tokens),
        _tensors(spec),
        compute,
        _constants(spec),
    )


FAMILY = Family(
    name="mhc_head_mix_backward",
    summary="gradients of mhc_head_mix; those of scale and base as sums per 64 tokens",
    spec_type=MhcHeadMixBackwardSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TOKEN_LANE_SOURCES, "kaas.kernel_library.vector.mhc_fields"),
    page=KernelPage(
        computes=(
            "With s = sigmoid(logits * scale + base) and g = mix_grad * s * (1 - s):\n\n"
            "    logits_grad[t, m] = g[t, m] * scale\n"
            "    base_grad[b, m]   = sum over the tokens t of block b of g[t, m]\n"
            "    scale_grad[b]     = sum over the tokens t of block b, and over m, of "
            "g[t, m] * logits[t, m]\n\n"
            "A block is 64 tokens. The caller adds up the blocks, in whatever order suits it."
        ),
        arguments={
            "mix_grad": "gradient of mix, row-major",
            "logits": "as the forward kernel took them",
            "scale": "one factor for all logits",
            "base": "one offset per stream",
            "logits_grad": "row-major",
            "scale_grad": "one partial sum per block of 64 tokens",
            "base_grad": "one row of partial sums per block of 64 tokens",
        },
        tolerance="2^-18 of the value, and 2^-22 (logits_grad), 2^-18 (base_grad) or 2^-16 (scale_grad)",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_head_compute_mix_bwd",),
        examples=(MhcHeadMixBackwardSpec(),),
    ),
)
