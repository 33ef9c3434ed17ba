"""cast: rows of bf16, fp32 or quantised values to e4m3 or e2m1 with a scale per block."""

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
    TILELANG_VALUE,
    VALUE_BITS,
    ScaleReader,
    even,
    is_quantised,
)
from kaas.kernel_library.vector.quantise import RowQuantiser
from kaas.kernel_library.vector.quantise_columns import COLUMN_SOURCES, ColumnQuantiser
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import RowPlan, RowTile, plan_rows, require_row_tile
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

GRANULARITIES = ("per_token", "per_block", "per_channel")
BLOCK_ROWS = 32
TILE_COLUMNS = (256, 512, 1024, 2048)
E8M0 = "e8m0x2"


class CastSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="cast"):
    """Quantisation of a matrix [tokens, hidden] with one scale per block of values.

    A block is 1 x 32 values (``per_token``), 32 x 32 (``per_block``) or 32 x 1 (``per_channel``). Arguments
    in call order: x[tokens, hidden] of ``in_dtype``; x_scales if ``in_dtype`` is e4m3 or e2m1 (one per 1 x 32
    values, of ``in_scales``; [blocks, tokens] instead of [tokens, blocks] if ``in_col_major``); out[tokens,
    hidden] of ``fmt`` unless ``scales`` is "only"; out_scales of ``scale_dtype`` (``col_major`` swaps the
    axes), which "given" makes an input before out. e8m0 scales are pairs in one element: of adjacent blocks
    of a row, for ``per_channel`` of adjacent blocks of a column; they need ``round_sf``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(32, 32768, multiple_of=32)]
    granularity: Literal["per_token", "per_block", "per_channel"] = "per_token"
    in_dtype: Literal["bf16", "fp32", "e4m3", "e2m1"] = "bf16"
    in_scales: Literal["none", "fp32", "e8m0x2"] = "none"
    in_col_major: bool = False
    fmt: Literal["e4m3", "e2m1"] = "e4m3"
    scales: Literal["computed", "only", "given"] = "computed"
    scale_dtype: Literal["fp32", "e8m0x2"] = "fp32"
    round_sf: bool = False
    col_major: bool = False
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 32, 32768, multiple_of=32)
        require_one_of(self.granularity, "granularity", GRANULARITIES)
        require_one_of(self.in_dtype, "in_dtype", ("bf16", "fp32", "e4m3", "e2m1"))
        require_one_of(self.in_scales, "in_scales", ("none", "fp32", E8M0))
        require_bool(self.in_col_major, "in_col_major")
        require_one_of(self.fmt, "fmt", ("e4m3", "e2m1"))
        require_one_of(self.scales, "scales", ("computed", "only", "given"))
        require_one_of(self.scale_dtype, "scale_dtype", ("fp32", E8M0))
        require_bool(self.round_sf, "round_sf")
        require_bool(self.col_major, "col_major")
        require_dim(self.tokens, "tokens")
        require_row_tile(self.tile)
        self._check_input()
        self._check_output()
        if not _by_rows(self):
            require_tile_rows(self.tile, tile_row_counts(self.granularity, self.scale_dtype))

    def _check_input(self) -> None:
        quantised = is_quantised(self.in_dtype)
        if quantised and self.granularity == "per_block":
            _refuse("in_dtype", self.in_dtype, "per_block casts", ["bf16", "fp32"])
        if self.in_dtype == "e2m1" and self.granularity == "per_channel":
            _refuse("in_dtype", self.in_dtype, "per_channel casts", ["bf16", "fp32", "e4m3"])
        if quantised != (self.in_scales != "none"):
            _refuse("in_scales", self.in_scales, self.in_dtype, ["fp32", E8M0] if quantised else ["none"])
        if self.in_col_major and not quantised:
            _refuse("in_col_major", True, f"{self.in_dtype} input, which has no scales", [False])

    def _check_output(self) -> None:
        if self.granularity == "per_channel":
            _require("fmt", self.fmt, "e4m3", "per_channel casts")
            _require("scales", self.scales, "computed", "per_channel casts")
            _require("col_major", self.col_major, False, "per_channel casts")
        if is_quantised(self.in_dtype):
            _require("scales", self.scales, "computed", f"{self.in_dtype} input")
        if self.scales == "given":
            _require("scale_dtype", self.scale_dtype, "fp32", "given scales")
            _require("round_sf", self.round_sf, False, "given scales")
            _require("col_major", self.col_major, False, "given scales")
        if self.scale_dtype == E8M0:
            _require("round_sf", self.round_sf, True, "e8m0 scales, which are powers of two")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row, or a tile of ``per_block`` or ``per_channel``, exceeds UB."""
        plan_of(self, target)


def _refuse(field: str, value: Any, context: str, legal: list[Any]) -> None:
    choices = ", ".join(map(str, legal))
    raise InvalidSpec(f"{field} is {value}; legal for {context}: {choices}", field=field, legal=legal)


def _require(field: str, value: Any, legal: Any, context: str) -> None:
    if value != legal:
        _refuse(field, value, context, [legal])


def _by_rows(spec: CastSpec) -> bool:
    """Whether whole rows go through UB; scales by column and blocks of several rows need tiles."""
    return spec.granularity == "per_token" and not spec.col_major and not spec.in_col_major


def _reader(spec: CastSpec, columns: int) -> ScaleReader | None:
    if not is_quantised(spec.in_dtype):
        return None
    return ScaleReader(
        columns=columns,
        dtype="e8m0" if spec.in_scales == E8M0 else "fp32",
        col_major=spec.in_col_major,
    )


def _row_quantiser(spec: CastSpec, columns: int) -> RowQuantiser:
    return RowQuantiser(
        hidden=columns,
        source=spec.in_dtype,
        fmt=spec.fmt,
        round_sf=spec.round_sf,
        scales="e8m0" if spec.scale_dtype == E8M0 else "fp32",
        col_major=spec.col_major,
        values=spec.scales != "only",
        computed=spec.scales != "given",
        share=BLOCK_ROWS if spec.granularity == "per_block" else 1,
    )


def _quantiser(spec: CastSpec, columns: int) -> RowQuantiser | ColumnQuantiser:
    if spec.granularity == "per_channel":
        return ColumnQuantiser(
            columns=columns,
            source=spec.in_dtype,
            round_sf=spec.round_sf,
            scales="e8m0" if spec.scale_dtype == E8M0 else "fp32",
        )
    return _row_quantiser(spec, columns)


def plan_of(spec: CastSpec, target: Target) -> RowPlan | TilePlan:
    """The plan of rows or tiles; raises :class:`DoesNotFit` if not even one fits."""
    rows = None if spec.tokens == DYNAMIC else int(spec.tokens)
    what = f"a row of {spec.hidden} {spec.in_dtype}"
    if _by_rows(spec):
        quantiser, reader = _row_quantiser(spec, spec.hidden), _reader(spec, spec.hidden)
        source_bytes = quantiser.pitch * VALUE_BITS[spec.in_dtype] // 8
        return plan_rows(
            target,
            row_bytes=source_bytes + quantiser.row_bytes + (reader.row_bytes if reader else 0),
            rows=rows,
            passes=3.0,
            what=what,
            given=spec.tile,
        )

    def stage_bytes(tile_rows: int, columns: int) -> int:
        reader = _reader(spec, columns)
        scale_bytes = reader.row_bytes * tile_rows + reader.fixed_bytes_per_stage if reader else 0
        source_bytes = tile_rows * columns * VALUE_BITS[spec.in_dtype] // 8
        return source_bytes + scale_bytes + _quantiser(spec, columns).stage_bytes(tile_rows)

    return plan_tiles(
        target,
        width=spec.hidden,
        stage_bytes=stage_bytes,
        row_counts=tile_row_counts(spec.granularity, spec.scale_dtype),
        column_counts=TILE_COLUMNS,
        bytes_per_value=(VALUE_BITS[spec.in_dtype] + VALUE_BITS[spec.fmt]) / 8,
        rows=rows,
        passes=3.0,
        what="a tile",
        given=spec.tile,
    )


def scale_shape(spec: CastSpec) -> tuple[Extent, Extent]:
    """Shape of ``out_scales``."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    packed = 2 if spec.scale_dtype == E8M0 else 1
    if spec.granularity == "per_channel":
        return _ceil_div(tokens, BLOCK_ROWS * packed), spec.hidden
    down = tokens if spec.granularity == "per_token" else _ceil_div(tokens, BLOCK_ROWS)
    across = -(-spec.hidden // (BLOCK_ROWS * packed))
    return (across, down) if spec.col_major else (down, across)


def _ceil_div(extent: Extent, divisor: int) -> Extent:
    return f"ceil({extent}/{divisor})" if isinstance(extent, str) else -(-extent // divisor)


def parameters(spec: CastSpec) -> tuple[Parameter, ...]:
    """What a call takes: x and its scales, the values and theirs."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    taken = [value_parameter("x", "in", spec.in_dtype, tokens, spec.hidden)]
    if is_quantised(spec.in_dtype):
        across = -(-spec.hidden // (64 if spec.in_scales == E8M0 else 32))
        shape = (across, tokens) if spec.in_col_major else (tokens, across)
        taken.append(Parameter(name="x_scales", role="in", dtype=spec.in_scales, shape=shape))
    if spec.scales == "given":
        taken.append(Parameter(name="out_scales", role="in", dtype=spec.scale_dtype, shape=scale_shape(spec)))
    if spec.scales != "only":
        taken.append(value_parameter("out", "out", spec.fmt, tokens, spec.hidden))
    if spec.scales != "given":
        taken.append(
            Parameter(name="out_scales", role="out", dtype=spec.scale_dtype, shape=scale_shape(spec))
        )
    return tuple(taken)


def value_parameter(
    name: str, role: Literal["in", "out"], dtype: str, tokens: Extent, hidden: int
) -> Parameter:
    """A matrix of values; e2m1 lies in pairs."""
    if dtype == "e2m1":
        return Parameter(name=name, role=role, dtype="e2m1x2", shape=(tokens, hidden // 2))
    return Parameter(name=name, role=role, dtype=dtype, shape=(tokens, hidden))


def build(spec: CastSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores and UB size.

    Raises :class:`DoesNotFit` if neither a row nor a tile fits UB.
    """
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: CastSpec, plan: RowPlan | TilePlan, cores: int) -> Any:
    """The TileLang function of ``spec``: one macro per task, joined in ``block``."""
    import tilelang.ascend.language as T

    entry = Entry("cast", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    columns = plan.columns if isinstance(plan, TilePlan) else spec.hidden
    quantiser, reader = _quantiser(spec, columns), _reader(spec, columns)
    quantise, store = quantiser.tile_rows(), quantiser.store_tile()
    given, scaled = spec.scales == "given", reader is not None
    share = BLOCK_ROWS if spec.granularity == "per_block" else 1
    decoded = reader is not None and reader.needs_decoding
    load_scales: Any = reader.load() if reader else None
    decode: Any = reader.decode() if reader else None
    allocate_scales: Any = reader.allocate if reader else None

    @T.macro
    def load(state: Any, slot: Any, row: Any, rows: Any, column: Any, width: Any) -> None:
        call, x_ub, scales_ub, work = state
        T.copy(
            call.x[row : row + rows, even(column) : even(column) + even(width)],
            x_ub[slot, 0:rows, 0 : even(width)],
        )
        if scaled:
            load_scales(scales_ub, slot, call.x_scales, row, rows, column, width)
        if given:
            first = T.truncdiv(row, share)
            count = T.truncdiv(rows + share - 1, share)
            block = T.truncdiv(column, 32)
            blocks = T.truncdiv(width, 32)
            T.copy(
                call.out_scales[first : first + count, block : block + blocks],
                work.scales[slot, 0:count, 0:blocks],
            )

    @T.macro
    def compute(state: Any, slot: Any, row: Any, rows: Any, column: Any, width: Any) -> None:
        _, x_ub, scales_ub, work = state
        with T.SimdVF():
            if decoded:
                decode(scales_ub, slot, rows)
                T.simd.mem_bar("VST_VLD")
            held = (x_ub, scales_ub[0]) if scaled else x_ub
            quantise(held, work, slot, rows, T.truncdiv(width, 32))

    @T.macro
    def store_rows(state: Any, slot: Any, row: Any, rows: Any, column: Any, width: Any) -> None:
        call, _, _, work = state
        store(work, slot, row, rows, column, width, call.out, call.out_scales)

    run = matrix_pipeline(plan, cores, tokens, spec.hidden, load=load, compute=compute, store=store_rows)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            x_ub = T.alloc_shared((plan.stages, plan.rows, quantiser.pitch), TILELANG_VALUE[spec.in_dtype])
            scales_ub = allocate_scales(plan.stages, plan.rows) if scaled else None
            run((call, x_ub, scales_ub, quantiser.allocate(plan.stages, plan.rows)), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="cast",
    summary="quantisation to e4m3 or e2m1 with a scale per block of 32 values",
    spec_type=CastSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TILE_KERNEL_SOURCES, *COLUMN_SOURCES),
    page=KernelPage(
        computes=(
            "For each block of values with largest magnitude `amax`, clamped below to 1e-4 (e4m3) or\n"
            "6 * 2^-126 (e2m1), and `largest` = 448 or 6: `scale = amax / largest` and\n"
            "`out = round(x * (largest / amax))`. With `round_sf` the scale is rounded up to a power of two\n"
            "and its exact inverse is used. Each quotient is one fp32 division, the product one fp32\n"
            "multiplication; the last rounding is to nearest even and saturates. Given scales are used as\n"
            "`x * (1 / scale)`. Quantised input is first multiplied by its scale, rounded to fp32.\n\n"
            "A block with an infinity or a NaN gets a scale that dequantises to NaN (e8m0 255; as fp32\n"
            "infinity, or NaN without `round_sf`); its NaNs and infinities are stored as 0, and with an\n"
            "infinite or rounded scale the others too. With given scales nothing marks a NaN.\n"
            "e8m0 input 0 is 2^-127 and 255 is NaN."
        ),
        arguments={
            "x": "the matrix; e2m1 as bytes of two values, the even one in the low nibble",
            "x_scales": "one scale per 1 x 32 values of x: fp32, or e8m0 pairs (the first in the low byte)",
            "out": "the values; e2m1 as bytes of two values, the even one in the low nibble",
            "out_scales": (
                "one scale per block [token blocks, column blocks], or swapped with `col_major`; e8m0 in "
                "pairs of adjacent column blocks (`per_channel`: token blocks), a missing last one 0"
            ),
        },
        tolerance="bit-exact",
        facts=(
            "github.com/deepseek-ai/TileKernels 2.0.0: tile_kernels/torch/cast.py (rounding, layouts) and "
            "tile_kernels/config.py (clamp values)",
            "Open Compute Project, OCP Microscaling Formats 1.0 (e4m3, e2m1, e8m0)",
            "CANN asc-devkit docs: asc_float2e4m3, asc_bfloat162e2m1x2 (saturation; NaN becomes 0)",
        ),
        serves=(
            "tile_kernels.quant.per_token_cast",
            "tile_kernels.quant.per_token_cast_with_sf_only",
            "tile_kernels.quant.per_token_cast_with_precomputed_sf",
            "tile_kernels.quant.per_block_cast",
            "tile_kernels.quant.per_block_cast_with_sf_only",
            "tile_kernels.quant.per_block_cast_with_precomputed_sf",
            "tile_kernels.quant.per_channel_cast",
        ),
        examples=(
            CastSpec(hidden=7168, round_sf=True, scale_dtype="e8m0x2"),
            CastSpec(hidden=7168, granularity="per_block", fmt="e2m1", round_sf=True, scale_dtype="e8m0x2"),
            CastSpec(hidden=7168, in_dtype="e4m3", in_scales="fp32", fmt="e2m1"),
        ),
    ),
)
