"""mhc_sinkhorn: small matrices made (nearly) doubly stochastic, one per token."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import Dim, KernelSpec, require_dim, require_int, within
from kaas.kernel_library.vector.mhc_fields import (
    SinkhornEpsilon,
    Streams,
    require_sinkhorn_epsilon,
    require_streams,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import RowPlan
from kaas.kernel_library.vector.sinkhorn_lanes import SINKHORN_SOURCES, normalised, softmax_of
from kaas.kernel_library.vector.token_lanes import (
    TOKEN_LANE_SOURCES,
    LaneTensor,
    lane_program,
    plan_token_blocks,
    token_extent,
)
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class MhcSinkhornSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_sinkhorn"):
    """Sinkhorn-Knopp on a ``streams`` x ``streams`` matrix per token, fp32.

    Arguments in call order: x[tokens, streams, streams], y alike. ``repeat`` counts the column
    normalisations; ``repeat`` and ``eps`` are compiled in.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    streams: Streams = 4
    repeat: Annotated[int, within(1, 32)] = 10
    eps: SinkhornEpsilon = 1e-6
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_streams(self.streams)
        require_int(self.repeat, "repeat", 1, 32)
        require_sinkhorn_epsilon(self.eps, "eps")
        require_dim(self.tokens, "tokens")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a block of tokens does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MhcSinkhornSpec, target: Target) -> RowPlan:
    """The plan of token blocks."""
    return plan_token_blocks(target, _tensors(spec), tokens=spec.tokens, passes=4.0 * spec.repeat)


def _tensors(spec: MhcSinkhornSpec) -> tuple[LaneTensor, ...]:
    size = spec.streams**2
    return (LaneTensor(name="x", values=size), LaneTensor(name="y", values=size, written=True))


def parameters(spec: MhcSinkhornSpec) -> tuple[Parameter, ...]:
    """What a call takes: x, y."""
    shape = (token_extent(spec.tokens), spec.streams, spec.streams)
    return (
        Parameter(name="x", role="in", dtype="fp32", shape=shape),
        Parameter(name="y", role="out", dtype="fp32", shape=shape),
    )


def build(spec: MhcSinkhornSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a block does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcSinkhornSpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    size = spec.streams**2
    softmax = softmax_of(spec.streams)
    divide_rows = normalised(spec.streams, spec.eps, rows=True)
    divide_columns = normalised(spec.streams, spec.eps, rows=False)

    @T.macro
    def compute(lanes: Any) -> None:
        cell = T.simd.alloc_local((size,), "float32")
        for i in range(size):
            cell[i] = lanes.get("x", i)
        softmax(cell)
        for i in range(size):
            cell[i] = T.simd.vadds(cell[i], spec.eps)
        divide_columns(cell)
        if spec.repeat > 1:
            for _ in T.serial(T.uint16(spec.repeat - 1)):
                divide_rows(cell)
                divide_columns(cell)
        for i in range(size):
            lanes.put("y", i, cell[i])

    tokens = token_extent(spec.tokens)
    return lane_program("mhc_sinkhorn", parameters(spec), plan, cores, tokens, _tensors(spec), compute)


FAMILY = Family(
    name="mhc_sinkhorn",
    summary="small matrices made nearly doubly stochastic, one per token (manifold-constrained mixing)",
    spec_type=MhcSinkhornSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TOKEN_LANE_SOURCES, *SINKHORN_SOURCES, "kaas.kernel_library.vector.mhc_fields"),
    page=KernelPage(
        computes=(
            "For each token's matrix: y = the softmax of each row of x, plus eps; each column divided by its "
            "sum plus eps; then `repeat - 1` times each row, and each column, divided by its sum plus eps. "
            "In fp32; a sum adds its cells in ascending order, and the softmax subtracts the largest of the "
            "row first."
        ),
        arguments={"x": "row-major: one matrix per token", "y": "like x"},
        tolerance=(
            "2^-18 of each cell for up to 20 repetitions on logits of about 1, 2^-16 for any finite logits "
            "and `eps`; cells below 2^-126 may be 0"
        ),
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_sinkhorn_fwd",),
        examples=(MhcSinkhornSpec(),),
    ),
)
