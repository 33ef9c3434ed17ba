"""mhc_split_mixes: scaled and shifted mixing logits, split into the three mixes of a hyper-connection."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    Dim,
    Epsilon,
    KernelSpec,
    require_dim,
    require_epsilon,
    require_float,
    within,
)
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


class MhcSplitMixesSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_split_mixes"
):
    """Mixing logits into pre, post and residual mixes, fp32; ``streams`` = M.

    Arguments in call order: mixes[tokens, M * (M + 2)], scale[3], base[M * (M + 2)], pre_mix[tokens, M],
    post_mix[tokens, M], comb_mix[tokens, M, M]. ``pre_eps`` and ``post_mult`` are compiled in.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    streams: Streams = 4
    post_mult: Annotated[float, within(0.0, 1024.0)] = 2.0
    pre_eps: Epsilon = 1e-6
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_streams(self.streams)
        require_float(self.post_mult, "post_mult", 0.0, 1024.0)
        require_epsilon(self.pre_eps, "pre_eps")
        require_dim(self.tokens, "tokens")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a block of tokens does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MhcSplitMixesSpec, target: Target) -> RowPlan:
    """The plan of token blocks."""
    return plan_token_blocks(target, _tensors(spec), _constants(spec), tokens=spec.tokens)


def _tensors(spec: MhcSplitMixesSpec) -> tuple[LaneTensor, ...]:
    streams = spec.streams
    return (
        LaneTensor(name="mixes", values=streams * (streams + 2)),
        LaneTensor(name="pre_mix", values=streams, written=True),
        LaneTensor(name="post_mix", values=streams, written=True),
        LaneTensor(name="comb_mix", values=streams**2, written=True),
    )


def _constants(spec: MhcSplitMixesSpec) -> tuple[Constant, ...]:
    return (Constant(name="scale", values=3), Constant(name="base", values=spec.streams * (spec.streams + 2)))


def parameters(spec: MhcSplitMixesSpec) -> tuple[Parameter, ...]:
    """What a call takes: mixes, scale, base, pre_mix, post_mix, comb_mix."""
    tokens, streams = token_extent(spec.tokens), spec.streams
    width = streams * (streams + 2)
    return (
        Parameter(name="mixes", role="in", dtype="fp32", shape=(tokens, width)),
        Parameter(name="scale", role="in", dtype="fp32", shape=(3,)),
        Parameter(name="base", role="in", dtype="fp32", shape=(width,)),
        Parameter(name="pre_mix", role="out", dtype="fp32", shape=(tokens, streams)),
        Parameter(name="post_mix", role="out", dtype="fp32", shape=(tokens, streams)),
        Parameter(name="comb_mix", role="out", dtype="fp32", shape=(tokens, streams, streams)),
    )


def build(spec: MhcSplitMixesSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a block does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcSplitMixesSpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    streams = spec.streams

    def logit(lanes: Any, value: int, part: int) -> Any:
        """mix * scale + base, rounded after the product as well."""
        scaled = T.simd.vmul(lanes.get("mixes", value), lanes.constant("scale", part))
        return T.simd.vadd(scaled, lanes.constant("base", value))

    @T.macro
    def compute(lanes: Any) -> None:
        for i in range(streams):
            lanes.put("pre_mix", i, T.simd.vadds(sigmoid(logit(lanes, i, 0)), spec.pre_eps))
        for i in range(streams):
            post = T.simd.vmuls(sigmoid(logit(lanes, streams + i, 1)), spec.post_mult)
            lanes.put("post_mix", i, post)
        for i in range(streams**2):
            lanes.put("comb_mix", i, logit(lanes, 2 * streams + i, 2))

    tokens = token_extent(spec.tokens)
    return lane_program(
        "mhc_split_mixes", parameters(spec), plan, cores, tokens, _tensors(spec), compute, _constants(spec)
    )


FAMILY = Family(
    name="mhc_split_mixes",
    summary="mixing logits split into the pre, post and residual mixes of a hyper-connection",
    spec_type=MhcSplitMixesSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TOKEN_LANE_SOURCES, "kaas.kernel_library.vector.mhc_fields"),
    page=KernelPage(
        computes=(
            "The values of a token's row of mixes are M for pre, M for post and M * M for comb:\n\n"
            "    pre_mix[t, m]     = sigmoid(pre[t, m] * scale[0] + base) + pre_eps\n"
            "    post_mix[t, m]    = sigmoid(post[t, m] * scale[1] + base) * post_mult\n"
            "    comb_mix[t, m, n] = comb[t, m, n] * scale[2] + base\n\n"
            "in fp32, rounded after every operation; base has one value for each of the row's."
        ),
        arguments={
            "mixes": "row-major: pre, post and comb of a token one behind the other",
            "scale": "factors of pre, post and comb",
            "base": "one offset for each value of a row of mixes",
            "pre_mix": "row-major",
            "post_mix": "row-major",
            "comb_mix": "row-major",
        },
        tolerance="2^-20 of the value and 2^-20; comb_mix of integers bit by bit",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_pre_split_mixes_fwd",),
        examples=(MhcSplitMixesSpec(),),
    ),
)
