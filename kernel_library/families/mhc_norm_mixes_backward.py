"""mhc_norm_mixes_backward: gradients of mhc_norm_mixes."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any

from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import Dim, Epsilon, KernelSpec, require_dim, require_epsilon
from kaas.kernel_library.vector.mhc_fields import Mixes, Width, require_mixes, require_width
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import RowPlan
from kaas.kernel_library.vector.token_lanes import (
    TOKEN_LANE_SOURCES,
    LaneTensor,
    lane_program,
    plan_token_blocks,
    reciprocal_rms,
    token_extent,
)
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class MhcNormMixesBackwardSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_norm_mixes_backward"
):
    """Gradients of mhc_norm_mixes with the same ``hidden``, ``columns`` and ``eps``, fp32.

    Arguments in call order: normed_grad[tokens, columns], mixes[tokens, columns], square_sum[tokens],
    mixes_grad like mixes, square_sum_grad like square_sum. A part of a sum has the gradient of the sum.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Width
    columns: Mixes = 24
    eps: Epsilon = 1e-6
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_width(self.hidden)
        require_mixes(self.columns)
        require_epsilon(self.eps, "eps")
        require_dim(self.tokens, "tokens")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a block of tokens does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MhcNormMixesBackwardSpec, target: Target) -> RowPlan:
    """The plan of token blocks."""
    return plan_token_blocks(target, _tensors(spec), tokens=spec.tokens, field="columns")


def _tensors(spec: MhcNormMixesBackwardSpec) -> tuple[LaneTensor, ...]:
    return (
        LaneTensor(name="normed_grad", values=spec.columns),
        LaneTensor(name="mixes", values=spec.columns),
        LaneTensor(name="square_sum", values=1),
        LaneTensor(name="mixes_grad", values=spec.columns, written=True),
        LaneTensor(name="square_sum_grad", values=1, written=True),
    )


def parameters(spec: MhcNormMixesBackwardSpec) -> tuple[Parameter, ...]:
    """What a call takes: normed_grad, mixes, square_sum, and the gradients of these two."""
    tokens = token_extent(spec.tokens)
    rows = (tokens, spec.columns)
    return (
        Parameter(name="normed_grad", role="in", dtype="fp32", shape=rows),
        Parameter(name="mixes", role="in", dtype="fp32", shape=rows),
        Parameter(name="square_sum", role="in", dtype="fp32", shape=(tokens,)),
        Parameter(name="mixes_grad", role="out", dtype="fp32", shape=rows),
        Parameter(name="square_sum_grad", role="out", dtype="fp32", shape=(tokens,)),
    )


def build(spec: MhcNormMixesBackwardSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a block does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcNormMixesBackwardSpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    @T.macro
    def compute(lanes: Any) -> None:
        squares = T.simd.alloc_var("float32")
        factor = T.simd.alloc_var("float32")
        total = T.simd.alloc_var("float32")
        squares = lanes.get("square_sum", 0)
        factor = reciprocal_rms(squares, spec.hidden, spec.eps)
        total = T.simd.vdup(0.0, "float32")
        for column in T.serial(T.uint16(spec.columns)):
            at = T.cast(column, "int32")
            gradient = T.simd.alloc_var("float32")
            gradient = lanes.get("normed_grad", at)
            total = T.simd.vadd(total, T.simd.vmul(gradient, lanes.get("mixes", at)))
            lanes.put("mixes_grad", at, T.simd.vmul(gradient, factor))
        # The factor's derivative is -1/2 * factor / (square_sum + eps * hidden).
        slope = T.simd.vdiv(T.simd.vmuls(factor, -0.5), T.simd.vadds(squares, spec.eps * spec.hidden))
        lanes.put("square_sum_grad", 0, T.simd.vmul(total, slope))

    return lane_program(
        "mhc_norm_mixes_backward",
        parameters(spec),
        plan,
        cores,
        token_extent(spec.tokens),
        _tensors(spec),
        compute,
    )


FAMILY = Family(
    name="mhc_norm_mixes_backward",
    summary="gradients of mhc_norm_mixes",
    spec_type=MhcNormMixesBackwardSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TOKEN_LANE_SOURCES, "kaas.kernel_library.vector.mhc_fields"),
    page=KernelPage(
        computes=(
            "With r = 1 / sqrt(square_sum / hidden + eps):\n\n"
            "    mixes_grad[t, c]   = normed_grad[t, c] * r[t]\n"
            "    square_sum_grad[t] = (sum over c of normed_grad[t, c] * mixes[t, c]) * -r[t] / 2 "
            "/ (square_sum[t] + eps * hidden)\n\n"
            "in fp32, the sum in ascending order. The gradient of x is then mixes_grad @ weight "
            "+ 2 * square_sum_grad * x, and the weight's is mixes_grad^T @ x."
        ),
        arguments={
            "normed_grad": "gradient of normed, row-major",
            "mixes": "as the forward kernel took or wrote it",
            "square_sum": "as the forward kernel took or wrote it",
            "mixes_grad": "like mixes",
            "square_sum_grad": "like square_sum",
        },
        tolerance="2^-21 of the value (mixes_grad); 2^-19 of the summed magnitudes (square_sum_grad)",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_reduce_partials_and_rmsnorm_bwd",),
        examples=(MhcNormMixesBackwardSpec(hidden=4 * 7168),),
    ),
)
