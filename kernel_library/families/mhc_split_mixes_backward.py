"""mhc_split_mixes_backward: gradients of mhc_split_mixes; of scale and base per 64 tokens."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import Dim, KernelSpec, require_dim, require_float, within
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


class MhcSplitMixesBackwardSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_split_mixes_backward"
):
    """Gradients of mhc_split_mixes with the same ``streams`` = M and ``post_mult``, fp32.

    Arguments in call order: pre_mix_grad[tokens, M], post_mix_grad[tokens, M], comb_mix_grad[tokens, M, M],
    mixes[tokens, M * (M + 2)], scale[3], base[M * (M + 2)], mixes_grad like mixes, and the sums over each
    block of 64 tokens: scale_grad[ceil(tokens/64), 3], base_grad[ceil(tokens/64), M * (M + 2)].

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    streams: Streams = 4
    post_mult: Annotated[float, within(0.0, 1024.0)] = 2.0
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_streams(self.streams)
        require_float(self.post_mult, "post_mult", 0.0, 1024.0)
        require_dim(self.tokens, "tokens")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a block of tokens does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MhcSplitMixesBackwardSpec, target: Target) -> RowPlan:
    """The plan of token blocks."""
    return plan_token_blocks(target, _tensors(spec), _constants(spec), tokens=spec.tokens)


def _tensors(spec: MhcSplitMixesBackwardSpec) -> tuple[LaneTensor, ...]:
    streams = spec.streams
    width = streams * (streams + 2)
    return (
        LaneTensor(name="pre_mix_grad", values=streams),
        LaneTensor(name="post_mix_grad", values=streams),
        LaneTensor(name="comb_mix_grad", values=streams**2),
        LaneTensor(name="mixes", values=width),
        LaneTensor(name="mixes_grad", values=width, written=True),
        LaneTensor(name="scale_grad", values=3, written=True, per_block=True),
        LaneTensor(name="base_grad", values=width, written=True, per_block=True),
    )


def _constants(spec: MhcSplitMixesBackwardSpec) -> tuple[Constant, ...]:
    return (Constant(name="scale", values=3), Constant(name="base", values=spec.streams * (spec.streams + 2)))


def parameters(spec: MhcSplitMixesBackwardSpec) -> tuple[Parameter, ...]:
    """What a call takes: three gradients, mixes, scale, base, and the gradients of these three."""
    tokens, blocks, streams = token_extent(spec.tokens), block_extent(spec.tokens), spec.streams
    width = streams * (streams + 2)
    return (
        Parameter(name="pre_mix_grad", role="in", dtype="fp32", shape=(tokens, streams)),
        Parameter(name="post_mix_grad", role="in", dtype="fp32", shape=(tokens, streams)),
        Parameter(name="comb_mix_grad", role="in", dtype="fp32", shape=(tokens, streams, streams)),
        Parameter(name="mixes", role="in", dtype="fp32", shape=(tokens, width)),
        Parameter(name="scale", role="in", dtype="fp32", shape=(3,)),
        Parameter(name="base", role="in", dtype="fp32", shape=(width,)),
        Parameter(name="mixes_grad", role="out", dtype="fp32", shape=(tokens, width)),
        Parameter(name="scale_grad", role="out", dtype="fp32", shape=(blocks, 3)),
        Parameter(name="base_grad", role="out", dtype="fp32", shape=(blocks, width)),
    )


def build(spec: MhcSplitMixesBackwardSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a block does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcSplitMixesBackwardSpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    streams = spec.streams
    parts = (("pre_mix_grad", streams), ("post_mix_grad", streams), ("comb_mix_grad", streams**2))

    @T.macro
    def slope(lanes: Any, mix: Any, value: Any, part: Any) -> Any:
        """The slope of the sigmoid at this logit, times ``post_mult`` for part 1."""
        level = T.simd.alloc_var("float32")
        level = T.simd.vadd(T.simd.vmul(mix, lanes.constant("scale", part)), lanes.constant("base", value))
        level = sigmoid(level)
        level = T.simd.vmul(level, T.simd.vsub(T.simd.vdup(1.0, "float32"), level))
        if part == 1:
            level = T.simd.vmuls(level, spec.post_mult)
        return level

    @T.macro
    def compute(lanes: Any) -> None:
        first = 0
        for part, (name, values) in enumerate(parts):
            of_scale = T.simd.alloc_var("float32")
            of_scale = T.simd.vdup(0.0, "float32")
            for i in range(values):
                gradient = T.simd.alloc_var("float32")
                mix = T.simd.alloc_var("float32")
                gradient = lanes.get(name, i)
                mix = lanes.get("mixes", first + i)
                if part < 2:
                    gradient = T.simd.vmul(gradient, slope(lanes, mix, first + i, part))
                lanes.put("mixes_grad", first + i, T.simd.vmul(gradient, lanes.constant("scale", part)))
                lanes.put_sum("base_grad", first + i, gradient)
                of_scale = T.simd.vadd(of_scale, T.simd.vmul(gradient, mix))
            lanes.put_sum("scale_grad", part, of_scale)
            first += values

    return lane_program(
        "mhc_split_mixes_backward",
        parameters(spec),
        plan,
        cores,
        token_extent(spec.tokens),
        _tensors(spec),
        compute,
        _constants(spec),
    )


FAMILY = Family(
    name="mhc_split_mixes_backward",
    summary="gradients of mhc_split_mixes; those of scale and base as sums per 64 tokens",
    spec_type=MhcSplitMixesBackwardSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TOKEN_LANE_SOURCES, "kaas.kernel_library.vector.mhc_fields"),
    page=KernelPage(
        computes=(
            "g is comb_mix_grad as it is; for pre and post it is the gradient times s * (1 - s), with s the "
            "sigmoid of the forward kernel, and for post times `post_mult` too. Then, part by part (0 pre, "
            "1 post, 2 comb):\n\n"
            "    mixes_grad[t, i]    = g[t, i] * scale[part]\n"
            "    base_grad[b, i]     = sum over the tokens t of block b of g[t, i]\n"
            "    scale_grad[b, part] = sum over the tokens t of block b, and over i in part, of "
            "g[t, i] * mixes[t, i]\n\n"
            "A block is 64 tokens. The caller adds up the blocks, in whatever order suits it."
        ),
        arguments={
            "pre_mix_grad": "gradient of pre_mix, row-major",
            "post_mix_grad": "gradient of post_mix, row-major",
            "comb_mix_grad": "gradient of comb_mix, row-major",
            "mixes": "as the forward kernel took them",
            "scale": "factors of pre, post and comb",
            "base": "one offset for each value of a row of mixes",
            "mixes_grad": "like mixes",
            "scale_grad": "one row of partial sums per block of 64 tokens",
            "base_grad": "one row of partial sums per block of 64 tokens",
        },
        tolerance=(
            "2^-18 of the value, and 2^-20 (mixes_grad), 2^-16 (base_grad) or 2^-14 (scale_grad); integers "
            "through the comb part bit by bit"
        ),
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_pre_split_mixes_bwd",),
        examples=(MhcSplitMixesBackwardSpec(),),
    ),
)
