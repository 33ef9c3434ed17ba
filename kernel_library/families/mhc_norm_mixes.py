"""mhc_norm_mixes: mixing logits divided by the root mean square of what they were projected from."""

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
    require_int,
    within,
)
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

MAX_SPLITS = 64


class MhcNormMixesSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_norm_mixes"
):
    """The norm of x, applied to x @ weight^T instead of x; fp32.

    ``hidden`` is the width of x, all streams of a token side by side; ``columns`` how many mixing logits it
    was projected to. Arguments in call order: mixes[tokens, columns], square_sum[tokens],
    normed[tokens, columns].

    With ``splits`` above 1 the projection came in parts, which are added up first: mixes_parts[splits,
    tokens, columns], square_sum_parts[splits, tokens], then mixes and square_sum, which are written, and
    normed.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Width
    columns: Mixes = 24
    splits: Annotated[int, within(1, MAX_SPLITS)] = 1
    eps: Epsilon = 1e-6
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_width(self.hidden)
        require_mixes(self.columns)
        require_int(self.splits, "splits", 1, MAX_SPLITS)
        require_epsilon(self.eps, "eps")
        require_dim(self.tokens, "tokens")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if all parts of a block of tokens do not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MhcNormMixesSpec, target: Target) -> RowPlan:
    """The plan of token blocks."""
    return plan_token_blocks(
        target,
        _tensors(spec),
        tokens=spec.tokens,
        what=f"a block of 64 tokens with {spec.splits} parts",
        field="splits" if spec.splits > 1 else "columns",
    )


def _tensors(spec: MhcNormMixesSpec) -> tuple[LaneTensor, ...]:
    parted = spec.splits > 1
    normed = LaneTensor(name="normed", values=spec.columns, written=True)
    sums = (
        LaneTensor(name="mixes", values=spec.columns, written=parted),
        LaneTensor(name="square_sum", values=1, written=parted),
    )
    if not parted:
        return (*sums, normed)
    return (
        LaneTensor(name="mixes_parts", values=spec.columns, copies=spec.splits),
        LaneTensor(name="square_sum_parts", values=1, copies=spec.splits),
        *sums,
        normed,
    )


def parameters(spec: MhcNormMixesSpec) -> tuple[Parameter, ...]:
    """What a call takes: the parts if there are any, mixes, square_sum, normed."""
    tokens = token_extent(spec.tokens)
    rows = (tokens, spec.columns)
    normed = Parameter(name="normed", role="out", dtype="fp32", shape=rows)
    if spec.splits == 1:
        return (
            Parameter(name="mixes", role="in", dtype="fp32", shape=rows),
            Parameter(name="square_sum", role="in", dtype="fp32", shape=(tokens,)),
            normed,
        )
    return (
        Parameter(name="mixes_parts", role="in", dtype="fp32", shape=(spec.splits, *rows)),
        Parameter(name="square_sum_parts", role="in", dtype="fp32", shape=(spec.splits, tokens)),
        Parameter(name="mixes", role="out", dtype="fp32", shape=rows),
        Parameter(name="square_sum", role="out", dtype="fp32", shape=(tokens,)),
        normed,
    )


def build(spec: MhcNormMixesSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a block does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcNormMixesSpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    @T.macro
    def whole(lanes: Any, name: Any, value: Any) -> Any:
        """A value of each token: as it came, or the sum of its parts, which is stored as well."""
        total = T.simd.alloc_var("float32")
        if spec.splits == 1:
            total = lanes.get(name, value)
        else:
            total = lanes.get(name + "_parts", value)
            for part in T.serial(T.uint16(spec.splits - 1)):
                total = T.simd.vadd(total, lanes.get(name + "_parts", value, T.cast(part, "int32") + 1))
            lanes.put(name, value, total)
        return total

    @T.macro
    def compute(lanes: Any) -> None:
        factor = T.simd.alloc_var("float32")
        factor = reciprocal_rms(whole(lanes, "square_sum", 0), spec.hidden, spec.eps)
        for column in T.serial(T.uint16(spec.columns)):
            at = T.cast(column, "int32")
            lanes.put("normed", at, T.simd.vmul(whole(lanes, "mixes", at), factor))

    tokens = token_extent(spec.tokens)
    return lane_program("mhc_norm_mixes", parameters(spec), plan, cores, tokens, _tensors(spec), compute)


FAMILY = Family(
    name="mhc_norm_mixes",
    summary="mixing logits divided by the root mean square of what they were projected from",
    spec_type=MhcNormMixesSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TOKEN_LANE_SOURCES, "kaas.kernel_library.vector.mhc_fields"),
    page=KernelPage(
        computes=(
            "normed[t, c] = mixes[t, c] * 1 / sqrt(square_sum[t] / hidden + eps), in fp32.\n\n"
            "With hc_prenorm_gemm, which makes mixes = x @ weight^T and square_sum in one pass over x, this "
            "is the projection of the normalised x; a weight of the norm goes into the projection's weight "
            "with mhc_norm_weight. With `splits` above 1, mixes and square_sum are first added up from their "
            "parts, in ascending order."
        ),
        arguments={
            "mixes_parts": "parts of mixes, one plane of all tokens behind the other",
            "square_sum_parts": "parts of square_sum, likewise",
            "mixes": "x @ weight^T, row-major; written if it comes in parts",
            "square_sum": "the sum of squares of each row of x; written if it comes in parts",
            "normed": "like mixes",
        },
        tolerance="sums of integers bit by bit; else 2^-21 of the value, and 2^-20 of the summed magnitudes",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_reduce_partials_and_rmsnorm_fwd",),
        examples=(MhcNormMixesSpec(hidden=4 * 7168), MhcNormMixesSpec(hidden=4 * 7168, splits=8)),
    ),
)
