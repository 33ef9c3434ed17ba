"""cast_and_back: a matrix as it looks after quantisation and dequantisation, in one pass and in place."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    KernelSpec,
    require_bool,
    require_dim,
    require_int,
    require_one_of,
    within,
)
from kaas.kernel_library.vector.block_values import TILELANG_VALUE, VALUE_BITS
from kaas.kernel_library.vector.dequantise import DEQUANTISE_SOURCES, dequantise_row
from kaas.kernel_library.vector.quantise import QUANTISE_SOURCES, RowQuantiser
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import RowPlan, RowTile, plan_rows, require_row_tile
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class CastAndBackSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="cast_and_back"):
    """Each 1 x 32 values of x[tokens, hidden] quantised to ``fmt`` and back, in place.

    The one argument is x, of ``dtype``. ``round_sf`` rounds scales up to powers of two.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(32, 32768, multiple_of=32)]
    dtype: Literal["bf16", "fp32"] = "bf16"
    fmt: Literal["e4m3", "e2m1"] = "e4m3"
    round_sf: bool = False
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 32, 32768, multiple_of=32)
        require_one_of(self.dtype, "dtype", ("bf16", "fp32"))
        require_one_of(self.fmt, "fmt", ("e4m3", "e2m1"))
        require_bool(self.round_sf, "round_sf")
        require_dim(self.tokens, "tokens")
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row does not fit ``target``'s UB."""
        plan_of(self, target)


def _quantiser(spec: CastAndBackSpec) -> RowQuantiser:
    return RowQuantiser(
        hidden=spec.hidden, source=spec.dtype, fmt=spec.fmt, round_sf=spec.round_sf, scales="fp32"
    )


def plan_of(spec: CastAndBackSpec, target: Target) -> RowPlan:
    """The row plan; raises :class:`DoesNotFit` if not even one row fits."""
    quantiser = _quantiser(spec)
    return plan_rows(
        target,
        row_bytes=quantiser.pitch * VALUE_BITS[spec.dtype] // 8 + quantiser.row_bytes,
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        passes=4.0,
        what=f"a row of {spec.hidden} {spec.dtype}",
        given=spec.tile,
    )


def parameters(spec: CastAndBackSpec) -> tuple[Parameter, ...]:
    """What a call takes: the matrix."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    return (Parameter(name="x", role="inout", dtype=spec.dtype, shape=(tokens, spec.hidden)),)


def build(spec: CastAndBackSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``: values and scales stay in UB.

    Raises :class:`DoesNotFit` if a row does not fit UB.
    """
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: CastAndBackSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: one macro per task, joined in ``block``."""
    import tilelang.ascend.language as T

    entry = Entry("cast_and_back", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    quantiser, hidden = _quantiser(spec), spec.hidden
    quantise = quantiser.rows()
    dequantise = dequantise_row(spec.fmt, spec.dtype, quantiser.pitch)

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, x_ub, _ = state
        T.copy(call.x[first : first + count, 0:hidden], x_ub[slot, 0:count, 0:hidden])

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, x_ub, work = state
        with T.SimdVF():
            quantise(x_ub, work, slot, count)
            T.simd.mem_bar("VST_VLD")
            for row in T.serial(T.cast(count, "uint16")):
                dequantise((work.values, work.scales), x_ub, slot, T.cast(row, "int32"))

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, x_ub, _ = state
        T.copy(x_ub[slot, 0:count, 0:hidden], call.x[first : first + count, 0:hidden])

    run = row_pipeline(plan, cores, tokens, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            shape = (plan.stages, plan.rows, quantiser.pitch)
            x_ub = T.alloc_shared(shape, TILELANG_VALUE[spec.dtype])
            run((call, x_ub, quantiser.allocate(plan.stages, plan.rows)), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="cast_and_back",
    summary="quantisation to e4m3 or e2m1 and back in one pass, in place",
    spec_type=CastAndBackSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, *QUANTISE_SOURCES, *DEQUANTISE_SOURCES),
    page=KernelPage(
        computes=(
            "What `cast` by token with fp32 scales and then `cast_back` make of x; what would be stored in\n"
            "between stays in UB. A block with an infinity or a NaN becomes NaN."
        ),
        arguments={"x": "the matrix, updated in place"},
        tolerance="bit-exact",
        facts=(
            "github.com/deepseek-ai/TileKernels 2.0.0: "
            "tile_kernels/quant/per_token_cast_and_cast_back_kernel.py (in place, blocks of 32; its blocks "
            "of 16 with e4m3 scales are not offered)",
        ),
        serves=("tile_kernels.quant.per_token_cast_and_cast_back",),
        examples=(CastAndBackSpec(hidden=7168), CastAndBackSpec(hidden=7168, fmt="e2m1", round_sf=True)),
    ),
)
