"""cast_back: e4m3 or e2m1 values times the scales of their blocks, as bf16 or fp32."""

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
    TILELANG_VALUE,
    VALUE_BITS,
    ScaleReader,
    even,
    exponent_scale,
    halves_of,
)
from kaas.kernel_library.vector.dequantise import DEQUANTISE_SOURCES, HALF_CHUNK, dequantise_row, store_wide
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import (
    VECTOR_LANES,
    RowPlan,
    RowTile,
    padded,
    plan_rows,
    require_row_tile,
)
from kaas.kernel_library.vector.tile_pipeline import (
    TILE_KERNEL_SOURCES,
    TilePlan,
    matrix_pipeline,
    plan_tiles,
    require_tile_rows,
    tile_row_counts,
)
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

TILE_COLUMNS = (256, 512, 1024, 2048)
E8M0 = "e8m0x2"


class CastBackSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="cast_back"):
    """Dequantisation of a matrix [tokens, hidden] with one scale per block of values.

    A block is 1 x 32 values (``per_token``), 32 x 32 (``per_block``) or 32 x 1 (``per_channel``). Arguments
    in call order: x[tokens, hidden] of ``in_dtype``; x_scales of ``scale_dtype`` ([blocks of columns, blocks
    of tokens] if ``col_major``); out[tokens, hidden] of ``dtype``. e8m0 scales are pairs in one element: of
    adjacent blocks of a row, for ``per_channel`` of adjacent blocks of a column.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(32, 32768, multiple_of=32)]
    granularity: Literal["per_token", "per_block", "per_channel"] = "per_token"
    in_dtype: Literal["e4m3", "e2m1"] = "e4m3"
    scale_dtype: Literal["fp32", "e8m0x2"] = "fp32"
    col_major: bool = False
    dtype: Literal["bf16", "fp32"] = "bf16"
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 32, 32768, multiple_of=32)
        require_one_of(self.granularity, "granularity", ("per_token", "per_block", "per_channel"))
        require_one_of(self.in_dtype, "in_dtype", ("e4m3", "e2m1"))
        require_one_of(self.scale_dtype, "scale_dtype", ("fp32", E8M0))
        require_bool(self.col_major, "col_major")
        require_one_of(self.dtype, "dtype", ("bf16", "fp32"))
        require_dim(self.tokens, "tokens")
        require_row_tile(self.tile)
        if self.col_major and self.granularity == "per_channel":
            message = "col_major is true; per_channel scales lie by row: legal: false"
            raise InvalidSpec(message, field="col_major", legal=[False])
        if not _by_rows(self):
            require_tile_rows(self.tile, tile_row_counts(self.granularity, self.scale_dtype))

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row, or a tile of what goes by tiles, exceeds UB."""
        plan_of(self, target)


def _share(spec: CastBackSpec) -> int:
    """Rows with a row of scales in common."""
    return 1 if spec.granularity == "per_token" else BLOCK


def _reader(spec: CastBackSpec, columns: int) -> ScaleReader:
    return ScaleReader(
        columns=columns, dtype="e8m0" if spec.scale_dtype == E8M0 else "fp32", col_major=spec.col_major
    )


def _channel_scale_rows(spec: CastBackSpec, rows: int) -> int:
    return -(-rows // (BLOCK * (2 if spec.scale_dtype == E8M0 else 1)))


def _scale_bytes(spec: CastBackSpec, rows: int, columns: int) -> int:
    """UB bytes of a stage's scales."""
    if spec.granularity == "per_channel":
        element = 2 if spec.scale_dtype == E8M0 else 4
        return _channel_scale_rows(spec, rows) * padded(columns, 256) * element
    reader = _reader(spec, columns)
    return reader.row_bytes * -(-rows // _share(spec)) + reader.fixed_bytes_per_stage


def _by_rows(spec: CastBackSpec) -> bool:
    return spec.granularity == "per_token" and not spec.col_major


def plan_of(spec: CastBackSpec, target: Target) -> RowPlan | TilePlan:
    """The plan of rows or tiles; raises :class:`DoesNotFit` if not even one fits."""
    rows = None if spec.tokens == DYNAMIC else int(spec.tokens)
    value_bits = VALUE_BITS[spec.in_dtype] + VALUE_BITS[spec.dtype]
    if _by_rows(spec):
        return plan_rows(
            target,
            row_bytes=padded(spec.hidden, 256) * value_bits // 8 + _scale_bytes(spec, 1, spec.hidden),
            rows=rows,
            passes=1.0,
            what=f"a row of {spec.hidden} {spec.in_dtype}",
            given=spec.tile,
        )

    def stage_bytes(tile_rows: int, columns: int) -> int:
        return tile_rows * columns * value_bits // 8 + _scale_bytes(spec, tile_rows, columns)

    return plan_tiles(
        target,
        width=spec.hidden,
        stage_bytes=stage_bytes,
        row_counts=tile_row_counts(spec.granularity, spec.scale_dtype),
        column_counts=TILE_COLUMNS,
        bytes_per_value=value_bits / 8,
        rows=rows,
        passes=1.0,
        given=spec.tile,
    )


def scale_shape(spec: CastBackSpec) -> tuple[Extent, Extent]:
    """Shape of ``x_scales``."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    packed = 2 if spec.scale_dtype == E8M0 else 1
    if spec.granularity == "per_channel":
        return _ceil_div(tokens, BLOCK * packed), spec.hidden
    down, across = _ceil_div(tokens, _share(spec)), -(-spec.hidden // (BLOCK * packed))
    return (across, down) if spec.col_major else (down, across)


def _ceil_div(extent: Extent, divisor: int) -> Extent:
    if divisor == 1:
        return extent
    return f"ceil({extent}/{divisor})" if isinstance(extent, str) else -(-extent // divisor)


def parameters(spec: CastBackSpec) -> tuple[Parameter, ...]:
    """What a call takes: the stored values, their scales, the result."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    packed = spec.in_dtype == "e2m1"
    stored = (tokens, spec.hidden // 2 if packed else spec.hidden)
    return (
        Parameter(name="x", role="in", dtype="e2m1x2" if packed else spec.in_dtype, shape=stored),
        Parameter(name="x_scales", role="in", dtype=spec.scale_dtype, shape=scale_shape(spec)),
        Parameter(name="out", role="out", dtype=spec.dtype, shape=(tokens, spec.hidden)),
    )


def build(spec: CastBackSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores and UB size.

    Raises :class:`DoesNotFit` if neither a row nor a tile fits UB.
    """
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: CastBackSpec, plan: RowPlan | TilePlan, cores: int) -> Any:
    """The TileLang function of ``spec``: one macro per task, joined in ``block``."""
    import tilelang.ascend.language as T

    entry = Entry("cast_back", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    columns = plan.columns if isinstance(plan, TilePlan) else spec.hidden
    pitch = padded(columns, 256)
    scales = _channel_scales(spec, pitch) if spec.granularity == "per_channel" else _row_scales(spec, columns)
    allocate_scales, load_scales, dequantise = scales

    @T.macro
    def load(state: Any, slot: Any, row: Any, rows: Any, column: Any, width: Any) -> None:
        call, x_ub, scales_ub, _ = state
        T.copy(
            call.x[row : row + rows, even(column) : even(column) + even(width)],
            x_ub[slot, 0:rows, 0 : even(width)],
        )
        load_scales(scales_ub, slot, call.x_scales, row, rows, column, width)

    @T.macro
    def compute(state: Any, slot: Any, row: Any, rows: Any, column: Any, width: Any) -> None:
        _, x_ub, scales_ub, out_ub = state
        with T.SimdVF():
            dequantise(x_ub, scales_ub, out_ub, slot, rows)

    @T.macro
    def store(state: Any, slot: Any, row: Any, rows: Any, column: Any, width: Any) -> None:
        call, _, _, out_ub = state
        T.copy(out_ub[slot, 0:rows, 0:width], call.out[row : row + rows, column : column + width])

    run = matrix_pipeline(plan, cores, tokens, spec.hidden, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            x_ub = T.alloc_shared((plan.stages, plan.rows, pitch), TILELANG_VALUE[spec.in_dtype])
            out_ub = T.alloc_shared((plan.stages, plan.rows, pitch), TILELANG_VALUE[spec.dtype])
            run((call, x_ub, allocate_scales(plan.stages, plan.rows), out_ub), core)

    return entry.prim_func(block)


def _row_scales(spec: CastBackSpec, columns: int) -> tuple[Any, Any, Any]:
    """How scales of blocks along rows are allocated, loaded and used."""
    import tilelang.ascend.language as T

    reader, share = _reader(spec, columns), _share(spec)
    read, decode, decoded = reader.load(), reader.decode(), reader.needs_decoding
    row_of = dequantise_row(spec.in_dtype, spec.dtype, padded(columns, 256), share=share)

    def allocate(stages: int, rows: int) -> Any:
        return reader.allocate(stages, -(-rows // share))

    @T.macro
    def load(held: Any, slot: Any, source: Any, row: Any, rows: Any, column: Any, width: Any) -> None:
        scale_rows = T.truncdiv(rows + share - 1, share)
        read(held, slot, source, T.truncdiv(row, share), scale_rows, column, width)

    @T.macro
    def dequantise(x_ub: Any, held: Any, out_ub: Any, slot: Any, rows: Any) -> None:
        if decoded:
            decode(held, slot, T.truncdiv(rows + share - 1, share))
            T.simd.mem_bar("VST_VLD")
        for row in T.serial(T.cast(rows, "uint16")):
            row_of((x_ub, held[0]), out_ub, slot, T.cast(row, "int32"))

    return allocate, load, dequantise


def _channel_scales(spec: CastBackSpec, pitch: int) -> tuple[Any, Any, Any]:
    """How scales of blocks along columns are allocated, loaded and used."""
    import tilelang.ascend.language as T

    packed = spec.scale_dtype == E8M0
    per_row = BLOCK * (2 if packed else 1)
    halves, store = halves_of(spec.in_dtype, scaled=False), store_wide(spec.dtype)
    scale_of = exponent_scale()

    def allocate(stages: int, rows: int) -> Any:
        shape = (stages, _channel_scale_rows(spec, rows), pitch)
        return T.alloc_shared(shape, "uint16" if packed else "float32")

    @T.macro
    def load(held: Any, slot: Any, source: Any, row: Any, rows: Any, column: Any, width: Any) -> None:
        first, count = T.truncdiv(row, per_row), T.truncdiv(rows + per_row - 1, per_row)
        T.copy(source[first : first + count, column : column + width], held[slot, 0:count, 0:width])

    @T.macro
    def scales_at(held: Any, slot: Any, block: Any, at: Any) -> Any:
        if not packed:
            return T.simd.vld(held[slot, block, at])
        pairs = T.simd.vld(held[slot, T.truncdiv(block, 2), at], dist="UNPK_B16")
        shift = T.simd.vdup(T.truncmod(block, 2) * 8, "int32")
        bits = T.simd.vshr(T.reinterpret("uint32x64", pairs), shift)
        return scale_of(T.simd.vand(bits, T.simd.vdup(T.uint32(0xFF), "uint32")))

    @T.macro
    def column_block(x_ub: Any, held: Any, out_ub: Any, slot: Any, block: Any, members: Any, at: Any) -> None:
        low_scale = scales_at(held, slot, block, at)
        high_scale = scales_at(held, slot, block, at + VECTOR_LANES)
        for member in T.serial(T.cast(members, "uint16")):
            row = block * BLOCK + T.cast(member, "int32")
            low, high = halves(x_ub, slot, row, at)
            store(out_ub, slot, row, at, T.simd.vmul(low, low_scale))
            store(out_ub, slot, row, at + VECTOR_LANES, T.simd.vmul(high, high_scale))

    @T.macro
    def dequantise(x_ub: Any, held: Any, out_ub: Any, slot: Any, rows: Any) -> None:
        for block in T.serial(T.cast(T.truncdiv(rows + BLOCK - 1, BLOCK), "uint16")):
            members = T.min(rows - T.cast(block, "int32") * BLOCK, BLOCK)
            for half in T.serial(T.uint16(pitch // HALF_CHUNK)):
                at = T.cast(half, "int32") * HALF_CHUNK
                column_block(x_ub, held, out_ub, slot, T.cast(block, "int32"), members, at)

    return allocate, load, dequantise


FAMILY = Family(
    name="cast_back",
    summary="dequantisation of e4m3 or e2m1 with a scale per block of values",
    spec_type=CastBackSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TILE_KERNEL_SOURCES, *DEQUANTISE_SOURCES),
    page=KernelPage(
        computes=(
            "`out = round(x * scale)`: one fp32 multiplication, then one rounding to nearest even where\n"
            "`dtype` is bf16; overflow becomes infinity. e8m0 0 is 2^-127 and 255 is NaN."
        ),
        arguments={
            "x": "the stored values; e2m1 as bytes of two values, the even one in the low nibble",
            "x_scales": (
                "one scale per block [token blocks, column blocks], or swapped with `col_major`; e8m0 in "
                "pairs of adjacent column blocks (`per_channel`: token blocks), the first in the low byte"
            ),
            "out": "the matrix",
        },
        tolerance="bit-exact",
        facts=(
            "github.com/deepseek-ai/TileKernels 2.0.0: tile_kernels/quant/cast_back_kernel.py (layouts)",
            "Open Compute Project, OCP Microscaling Formats 1.0 (e4m3, e2m1, e8m0)",
        ),
        serves=("tile_kernels.quant.cast_back", "tile_kernels.quant.per_token_cast_back"),
        examples=(
            CastBackSpec(hidden=7168, scale_dtype="e8m0x2"),
            CastBackSpec(hidden=7168, granularity="per_block", in_dtype="e2m1", scale_dtype="e8m0x2"),
        ),
    ),
)
