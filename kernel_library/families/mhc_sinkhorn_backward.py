"""mhc_sinkhorn_backward: the gradient of mhc_sinkhorn, recomputing the steps from its input."""

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
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowPlan
from kaas.kernel_library.vector.sinkhorn_lanes import (
    SINKHORN_SOURCES,
    line_total,
    lines,
    normalised,
    softmax_of,
)
from kaas.kernel_library.vector.token_lanes import (
    TOKEN_LANE_SOURCES,
    LaneTensor,
    lane_program,
    plan_token_blocks,
    summed,
    token_extent,
)
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class MhcSinkhornBackwardSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_sinkhorn_backward"
):
    """The gradient of mhc_sinkhorn with the same ``streams``, ``repeat`` and ``eps``, fp32.

    Arguments in call order: y_grad[tokens, streams, streams], x (the forward kernel's input), x_grad alike.

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
        """Raise :class:`DoesNotFit` if the steps of a block of tokens do not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MhcSinkhornBackwardSpec, target: Target) -> RowPlan:
    """The plan of token blocks; every step of one block lies in UB between the way there and back."""
    return plan_token_blocks(
        target,
        _tensors(spec),
        tokens=spec.tokens,
        scratch_bytes=4 * _scratch(spec),
        passes=12.0 * spec.repeat,
        what=f"{spec.repeat} recomputed repetitions on a block of 64 tokens",
        field="repeat",
    )


def _tensors(spec: MhcSinkhornBackwardSpec) -> tuple[LaneTensor, ...]:
    size = spec.streams**2
    return (
        LaneTensor(name="y_grad", values=size),
        LaneTensor(name="x", values=size),
        LaneTensor(name="x_grad", values=size, written=True),
    )


def _scratch(spec: MhcSinkhornBackwardSpec) -> int:
    """fp32 values of UB for the softmax and the result of each of the 2 * repeat - 1 divisions."""
    return 2 * spec.repeat * spec.streams**2 * VECTOR_LANES


def parameters(spec: MhcSinkhornBackwardSpec) -> tuple[Parameter, ...]:
    """What a call takes: y_grad, x, x_grad."""
    shape = (token_extent(spec.tokens), spec.streams, spec.streams)
    return (
        Parameter(name="y_grad", role="in", dtype="fp32", shape=shape),
        Parameter(name="x", role="in", dtype="fp32", shape=shape),
        Parameter(name="x_grad", role="out", dtype="fp32", shape=shape),
    )


def build(spec: MhcSinkhornBackwardSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a block does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcSinkhornBackwardSpec, plan: RowPlan, cores: int) -> Any:
    import tilelang.ascend.language as T

    size = spec.streams**2
    plane = size * VECTOR_LANES
    softmax = softmax_of(spec.streams)
    divide_rows = normalised(spec.streams, spec.eps, rows=True)
    divide_columns = normalised(spec.streams, spec.eps, rows=False)

    @T.macro
    def keep(lanes: Any, step: Any, cell: Any) -> None:
        for i in range(size):
            T.simd.vsts(lanes.scratch[step * plane + i * VECTOR_LANES], cell[i])

    @T.macro
    def undo(lanes: Any, step: Any, gradient: Any, rows: Any, shift: Any) -> None:
        """Back through division ``step``: plane ``step`` (plus ``shift``) went in, the next one came out."""
        for line in lines(spec.streams, rows=rows):
            before = T.simd.alloc_local((size,), "float32")
            total = T.simd.alloc_var("float32")
            common = T.simd.alloc_var("float32")
            for i in line:
                before[i] = T.simd.vld(lanes.scratch[step * plane + i * VECTOR_LANES])
                if shift > 0:
                    before[i] = T.simd.vadds(before[i], shift)
            total = line_total(before, line, spec.eps)
            common = summed(
                [
                    T.simd.vmul(gradient[i], T.simd.vld(lanes.scratch[(step + 1) * plane + i * VECTOR_LANES]))
                    for i in line
                ]
            )
            for i in line:
                gradient[i] = T.simd.vdiv(T.simd.vsub(gradient[i], common), total)

    @T.macro
    def compute(lanes: Any) -> None:
        cell = T.simd.alloc_local((size,), "float32")
        for i in range(size):
            cell[i] = lanes.get("x", i)
        softmax(cell)
        keep(lanes, 0, cell)
        for i in range(size):
            cell[i] = T.simd.vadds(cell[i], spec.eps)
        divide_columns(cell)
        keep(lanes, 1, cell)
        if spec.repeat > 1:
            for turn in T.serial(T.uint16(spec.repeat - 1)):
                divide_rows(cell)
                keep(lanes, T.cast(turn, "int32") * 2 + 2, cell)
                divide_columns(cell)
                keep(lanes, T.cast(turn, "int32") * 2 + 3, cell)
        T.simd.mem_bar("VST_VLD")
        gradient = T.simd.alloc_local((size,), "float32")
        for i in range(size):
            gradient[i] = lanes.get("y_grad", i)
        if spec.repeat > 1:
            for turn in T.serial(T.uint16(spec.repeat - 1)):
                step = 2 * (spec.repeat - 1) - T.cast(turn, "int32") * 2
                undo(lanes, step, gradient, False, 0.0)
                undo(lanes, step - 1, gradient, True, 0.0)
        undo(lanes, 0, gradient, False, spec.eps)
        for row in lines(spec.streams, rows=True):
            common = T.simd.alloc_var("float32")
            common = summed(
                [T.simd.vmul(gradient[i], T.simd.vld(lanes.scratch[i * VECTOR_LANES])) for i in row]
            )
            for i in row:
                lanes.put(
                    "x_grad",
                    i,
                    T.simd.vmul(
                        T.simd.vsub(gradient[i], common), T.simd.vld(lanes.scratch[i * VECTOR_LANES])
                    ),
                )
        # The next block's steps may not overtake the loads of this one's.
        T.simd.mem_bar("VLD_VST")

    return lane_program(
        "mhc_sinkhorn_backward",
        parameters(spec),
        plan,
        cores,
        token_extent(spec.tokens),
        _tensors(spec),
        compute,
        scratch=_scratch(spec),
    )


FAMILY = Family(
    name="mhc_sinkhorn_backward",
    summary="gradient of mhc_sinkhorn, recomputing the steps from its input",
    spec_type=MhcSinkhornBackwardSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TOKEN_LANE_SOURCES, *SINKHORN_SOURCES, "kaas.kernel_library.vector.mhc_fields"),
    page=KernelPage(
        computes=(
            "The gradient of mhc_sinkhorn with the same `repeat` and `eps`. All its steps are computed again "
            "from x and kept in UB, then undone in turn: where a line v became y = v / (sum of v + eps), its "
            "gradient g becomes (g - sum of g * y) / (sum of v + eps)."
        ),
        arguments={
            "y_grad": "gradient of y, one matrix per token",
            "x": "as the forward kernel took it",
            "x_grad": "like x",
        },
        tolerance="1e-5 for gradients of about 1",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_sinkhorn_bwd",),
        examples=(MhcSinkhornBackwardSpec(),),
    ),
)
