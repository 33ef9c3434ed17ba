"""lossless_block_cast: e2m1 with a scale per row block as e4m3 with a scale per square block, exactly."""

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
from kaas.kernel_library.vector.block_values import (
    BLOCK,
    CHUNK,
    TILELANG_VALUE,
    VALUE_BITS,
    ScaleReader,
    even,
    exponent_scale,
    float_exponent,
    quarters_of,
)
from kaas.kernel_library.vector.quantise import (
    QUANTISE_SOURCES,
    RowQuantiser,
    e4m3_of_quarters,
    store_scales_macro,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowTile, padded, require_row_tile
from kaas.kernel_library.vector.tile_pipeline import (
    BLOCK_ROW_COUNTS,
    TILE_KERNEL_SOURCES,
    TilePlan,
    matrix_pipeline,
    plan_tiles,
    require_tile_rows,
)
from kaas.proto.extents import Extent, divided
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

E8M0 = "e8m0x2"
TILE_COLUMNS = (256, 512, 1024, 2048)
HEADROOM = 6
"""The largest row scale of a block is 2^6 times the block's: 6 * 2^6 = 384 is the largest value then."""
FOOTROOM = 8
"""The least one may be 2^-8 times it: 0.5 * 2^-8 is the least e4m3."""


class LosslessBlockCastSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="lossless_block_cast"
):
    """e2m1 x[tokens, hidden] with a power-of-two scale per 1 x 32 values, as e4m3 with one per 32 x 32.

    Arguments in call order: x; x_scales of ``in_scales`` ([blocks, tokens] if ``in_col_major``); out;
    out_scales of ``scale_dtype`` ([column blocks, token blocks] if ``col_major``).

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(32, 32768, multiple_of=32)]
    in_scales: Literal["fp32", "e8m0x2"] = "e8m0x2"
    in_col_major: bool = False
    scale_dtype: Literal["fp32", "e8m0x2"] = "e8m0x2"
    col_major: bool = False
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 32, 32768, multiple_of=32)
        require_one_of(self.in_scales, "in_scales", ("fp32", E8M0))
        require_bool(self.in_col_major, "in_col_major")
        require_one_of(self.scale_dtype, "scale_dtype", ("fp32", E8M0))
        require_bool(self.col_major, "col_major")
        require_dim(self.tokens, "tokens")
        require_row_tile(self.tile)
        require_tile_rows(self.tile, BLOCK_ROW_COUNTS)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile fits ``target``'s UB."""
        plan_of(self, target)


def _reader(spec: LosslessBlockCastSpec, columns: int) -> ScaleReader:
    return ScaleReader(
        columns=columns, dtype="e8m0" if spec.in_scales == E8M0 else "fp32", col_major=spec.in_col_major
    )


def _quantiser(spec: LosslessBlockCastSpec, columns: int) -> RowQuantiser:
    """Lays out the results; its own rule of scales is not used."""
    return RowQuantiser(
        hidden=columns,
        source="e2m1",
        fmt="e4m3",
        round_sf=True,
        scales="e8m0" if spec.scale_dtype == E8M0 else "fp32",
        col_major=spec.col_major,
        share=BLOCK,
    )


def plan_of(spec: LosslessBlockCastSpec, target: Target) -> TilePlan:
    """The tiles; raises :class:`DoesNotFit` if none fits."""

    def stage_bytes(rows: int, columns: int) -> int:
        reader = _reader(spec, columns)
        source = rows * columns * VALUE_BITS["e2m1"] // 8
        scales = reader.row_bytes * rows + reader.fixed_bytes_per_stage
        return source + scales + _quantiser(spec, columns).stage_bytes(rows)

    return plan_tiles(
        target,
        width=spec.hidden,
        stage_bytes=stage_bytes,
        row_counts=BLOCK_ROW_COUNTS,
        column_counts=TILE_COLUMNS,
        bytes_per_value=(VALUE_BITS["e2m1"] + VALUE_BITS["e4m3"]) / 8,
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        given=spec.tile,
    )


def parameters(spec: LosslessBlockCastSpec) -> tuple[Parameter, ...]:
    """What a call takes: x and its scales, the result and its scales."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    across_in = -(-spec.hidden // (BLOCK * (2 if spec.in_scales == E8M0 else 1)))
    across_out = -(-spec.hidden // (BLOCK * (2 if spec.scale_dtype == E8M0 else 1)))
    down = divided(tokens, BLOCK)
    x_scales = (across_in, tokens) if spec.in_col_major else (tokens, across_in)
    out_scales = (across_out, down) if spec.col_major else (down, across_out)
    return (
        Parameter(name="x", role="in", dtype="e2m1x2", shape=(tokens, spec.hidden // 2)),
        Parameter(name="x_scales", role="in", dtype=spec.in_scales, shape=x_scales),
        Parameter(name="out", role="out", dtype="e4m3", shape=(tokens, spec.hidden)),
        Parameter(name="out_scales", role="out", dtype=spec.scale_dtype, shape=out_scales),
    )


def build(spec: LosslessBlockCastSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores and UB size.

    Raises :class:`DoesNotFit` if no tile fits UB.
    """
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: LosslessBlockCastSpec, plan: TilePlan, cores: int) -> Any:
    """The TileLang function of ``spec``: one macro per task, joined in ``block``."""
    import tilelang.ascend.language as T

    entry = Entry("lossless_block_cast", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    reader, quantiser = _reader(spec, plan.columns), _quantiser(spec, plan.columns)
    read, decode, decoded = reader.load(), reader.decode(), reader.needs_decoding
    choose, convert = _scale_macro(spec, quantiser), _value_macro(quantiser.pitch)
    store_tile = quantiser.store_tile()

    @T.macro
    def load(state: Any, slot: Any, row: Any, rows: Any, column: Any, width: Any) -> None:
        call, x_ub, scales_ub, _ = state
        T.copy(
            call.x[row : row + rows, even(column) : even(column) + even(width)],
            x_ub[slot, 0:rows, 0 : even(width)],
        )
        read(scales_ub, slot, call.x_scales, row, rows, column, width)

    @T.macro
    def compute(state: Any, slot: Any, row: Any, rows: Any, column: Any, width: Any) -> None:
        _, x_ub, scales_ub, work = state
        with T.SimdVF():
            if decoded:
                decode(scales_ub, slot, rows)
                T.simd.mem_bar("VST_VLD")
            for block in T.serial(T.cast(T.truncdiv(rows + BLOCK - 1, BLOCK), "uint16")):
                choose(scales_ub[0], work, slot, T.cast(block, "int32"), rows, T.truncdiv(width, BLOCK))
            T.simd.mem_bar("VST_VLD")
            for member in T.serial(T.cast(rows, "uint16")):
                convert(x_ub, scales_ub[0], work, slot, T.cast(member, "int32"))

    @T.macro
    def store(state: Any, slot: Any, row: Any, rows: Any, column: Any, width: Any) -> None:
        call, _, _, work = state
        store_tile(work, slot, row, rows, column, width, call.out, call.out_scales)

    run = matrix_pipeline(plan, cores, tokens, spec.hidden, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            x_ub = T.alloc_shared((plan.stages, plan.rows, quantiser.pitch), TILELANG_VALUE["e2m1"])
            scales_ub = reader.allocate(plan.stages, plan.rows)
            run((call, x_ub, scales_ub, quantiser.allocate(plan.stages, plan.rows)), core)

    return entry.prim_func(block)


def _scale_macro(spec: LosslessBlockCastSpec, quantiser: RowQuantiser) -> Any:
    """A macro ``(scales_ub, work, slot, block, rows, blocks)`` for one row of square blocks.

    Stores their scales, and in place of each row's scales what its values are multiplied with.
    """
    import tilelang.ascend.language as T

    exponent, scale_of = float_exponent(), exponent_scale()
    store = store_scales_macro(quantiser)
    as_float = spec.scale_dtype == "fp32"

    @T.macro
    def exponents(scales_ub: Any, slot: Any, row: Any, first: Any) -> Any:
        return exponent(T.reinterpret("uint32x64", T.simd.vld(scales_ub[slot, row, first])))

    @T.macro
    def vector(
        scales_ub: Any, work: Any, slot: Any, block: Any, members: Any, first: Any, blocks: Any
    ) -> None:
        most = T.simd.alloc_var("uint32")
        least = T.simd.alloc_var("uint32")
        most = T.simd.vdup(T.uint32(0), "uint32")
        least = T.simd.vdup(T.uint32(255), "uint32")
        for member in T.serial(T.cast(members, "uint16")):
            power = exponents(scales_ub, slot, block * BLOCK + T.cast(member, "int32"), first)
            most = T.simd.vmax(most, power)
            least = T.simd.vmin(least, power)
        headroom = T.simd.vdup(T.uint32(HEADROOM), "uint32")
        shared = T.simd.vsub(T.simd.vmax(most, headroom), headroom)
        finite = T.simd.vcmps(most, T.uint32(255), op="ne")
        exact = T.simd.vcmp(T.simd.vadds(least, T.uint32(FOOTROOM)), shared, finite, op="ge")
        scale = T.simd.vsel(shared, T.simd.vdup(T.uint32(255), "uint32"), exact)
        if as_float:
            store(work, slot, block, scale_of(scale), first, blocks)
        else:
            store(work, slot, block, scale, first, blocks)
        unit = T.simd.vsub(T.simd.vdup(T.uint32(127), "uint32"), shared)
        for member in T.serial(T.cast(members, "uint16")):
            power = exponents(scales_ub, slot, block * BLOCK + T.cast(member, "int32"), first)
            factor = T.simd.vshls(T.simd.vadd(power, unit), 23)
            kept = T.simd.vsel(factor, T.simd.vdup(T.uint32(0), "uint32"), exact)
            T.simd.vsts(
                scales_ub[slot, block * BLOCK + T.cast(member, "int32"), first],
                T.reinterpret("float32x64", kept),
            )

    @T.macro
    def choose(scales_ub: Any, work: Any, slot: Any, block: Any, rows: Any, blocks: Any) -> None:
        members = T.min(rows - block * BLOCK, BLOCK)
        for step in T.serial(T.uint16(padded(quantiser.blocks) // VECTOR_LANES)):
            vector(scales_ub, work, slot, block, members, T.cast(step, "int32") * VECTOR_LANES, blocks)

    return choose


def _value_macro(pitch: int) -> Any:
    """A macro ``(x_ub, factors_ub, work, slot, row)``: the values of a row times their factors, as e4m3."""
    import tilelang.ascend.language as T

    quarters, merged = quarters_of("e2m1", scaled=False), e4m3_of_quarters()

    @T.macro
    def convert(x_ub: Any, factors_ub: Any, work: Any, slot: Any, row: Any) -> None:
        for chunk in T.serial(T.uint16(pitch // CHUNK)):
            at = T.cast(chunk, "int32") * CHUNK
            factor = T.simd.vld(
                factors_ub[slot, row, T.cast(chunk, "int32") * (CHUNK // BLOCK)], dist="E2B_B32"
            )
            values = quarters(x_ub, slot, row, at)
            stored = merged(values, (factor, factor, factor, factor))
            T.simd.vsts(work.values[slot, row, at], stored, dist="NORM_B8")

    return convert


FAMILY = Family(
    name="lossless_block_cast",
    summary="e2m1 with scales by row as e4m3 with scales by square block, without loss",
    spec_type=LosslessBlockCastSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TILE_KERNEL_SOURCES, *QUANTISE_SOURCES),
    page=KernelPage(
        computes=(
            "With biased exponents e of the row scales of a 32 x 32 block, its scale is\n"
            "`s = max(6, max(e)) - 6` and `out = x * 2^(e - s)`, which is exact as long as every row of the\n"
            "block has `e >= s - 8`. A block with rows further apart than that, or with a NaN scale or an\n"
            "fp32 one that is no power of two, cannot be cast without loss: its scale becomes 255 (fp32:\n"
            "NaN) and its values 0. Upstream stops the program there, and already at `e < s - 5`."
        ),
        arguments={
            "x": "bytes of two e2m1 values, the even one in the low nibble",
            "x_scales": "a power of two per 1 x 32 values, fp32 or e8m0 pairs",
            "out": "the values as e4m3",
            "out_scales": "a power of two per 32 x 32 values, fp32 or e8m0 pairs of adjacent column blocks",
        },
        tolerance="bit-exact",
        facts=(
            "github.com/deepseek-ai/TileKernels 2.0.0: tile_kernels/quant/per_block_cast_lossless_kernel.py "
            "and its Ascend form (choice of the block's scale)",
        ),
        serves=("tile_kernels.quant.per_block_cast_lossless",),
        examples=(
            LosslessBlockCastSpec(hidden=7168),
            LosslessBlockCastSpec(hidden=7168, in_scales="fp32", scale_dtype="fp32"),
        ),
    ),
)
