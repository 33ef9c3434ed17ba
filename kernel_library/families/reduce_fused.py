"""reduce_fused: the outputs of a token's experts, weighted and summed."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.column_tiles import (
    COLUMN_TILE_SOURCE,
    MAX_COLUMNS,
    ColumnTile,
    TokenSum,
    choose_columns,
    require_column_tile,
)
from kaas.kernel_library.routing.index_batches import BLOCK_BYTES, INDEX_BYTES, index_batches, index_pitch
from kaas.kernel_library.spec import (
    DTYPE_BYTES,
    DYNAMIC,
    Dim,
    Dtype,
    KernelSpec,
    require_bool,
    require_dim,
    require_int,
    require_one_of,
    within,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES
from kaas.kernel_library.vector.row_plan import NOMINAL_ROWS, VECTOR_LANES
from kaas.kernel_library.vector.wide_values import WIDE_VALUE_SOURCE, load_wide, store_wide, unroll_of
from kaas.proto.dtypes import ELEMENT_TYPES
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_TOPK = 32
TOKEN_BATCH = 128
BATCH_EVENT, SCALE_EVENT = 6, 7


class ReduceFusedSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="reduce_fused"):
    """Sum over a token's experts, in order of k, in fp32, rounded once.

    Arguments in call order: x[expanded, hidden]; x_scales[expanded] fp32 if ``row_scales``;
    weights[tokens, topk] fp32 if ``weights``; token_topk_to_pos[tokens, topk] int32; scale[1] fp32 if
    ``scale``; y[tokens, hidden] of ``dtype_y`` (``dtype`` or e4m3). ``scale`` multiplies the sum before it is
    rounded to e4m3.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(16, MAX_COLUMNS, multiple_of=16)]
    topk: Annotated[int, within(1, MAX_TOPK)]
    dtype: Dtype = "bf16"
    dtype_y: Literal["bf16", "fp16", "fp32", "e4m3"] = "bf16"
    weights: bool = True
    row_scales: bool = False
    scale: bool = False
    tokens: Dim = "dynamic"
    expanded: Dim = "dynamic"
    tile: ColumnTile | None = None

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 16, MAX_COLUMNS, multiple_of=16)
        require_int(self.topk, "topk", 1, MAX_TOPK)
        require_one_of(self.dtype, "dtype", ("bf16", "fp16", "fp32"))
        require_one_of(self.dtype_y, "dtype_y", (self.dtype, "e4m3"))
        for name in ("weights", "row_scales", "scale"):
            require_bool(getattr(self, name), name)
        if self.scale and self.dtype_y != "e4m3":
            raise InvalidSpec(
                "scale is true; legal: false, or dtype_y e4m3, which alone is scaled",
                field="scale",
                legal=[False],
            )
        require_dim(self.tokens, "tokens")
        require_dim(self.expanded, "expanded")
        require_column_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a given tile does not fit ``target``'s UB."""
        choose_tile(self, target)


def choose_tile(spec: ReduceFusedSpec, target: Target) -> tuple[ColumnTile, dict[str, Any]]:
    """Columns and stages with the least modelled time, and the report of the choice.

    Raises :class:`DoesNotFit` if a given tile needs more UB than there is.
    """
    loaded = spec.topk * DTYPE_BYTES[spec.dtype]
    factors = TOKEN_BATCH * index_pitch(spec.topk) * INDEX_BYTES
    work = TokenSum(
        hidden=spec.hidden,
        rows=spec.topk,
        tokens=NOMINAL_ROWS if spec.tokens == DYNAMIC else int(spec.tokens),
        column_bytes=loaded + DTYPE_BYTES[spec.dtype_y],
        loaded_bytes=loaded,
        stage_bytes=index_pitch(spec.topk) * INDEX_BYTES + spec.topk * BLOCK_BYTES * spec.row_scales,
        # Positions and weights of a batch of tokens, and the scale.
        fixed_bytes=factors * (2 if spec.weights else 1) + BLOCK_BYTES,
    )
    return choose_columns(work, target, spec.tile)


def parameters(spec: ReduceFusedSpec) -> tuple[Parameter, ...]:
    """What a call takes: expert outputs, their factors, where they lie, and the sums."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    expanded: Extent = "expanded" if spec.expanded == DYNAMIC else spec.expanded
    choices = (tokens, spec.topk)
    x_shape = (expanded, spec.hidden)
    taken = [Parameter(name="x", role="in", dtype=spec.dtype, shape=x_shape, may_be_empty=True)]
    if spec.row_scales:
        taken.append(
            Parameter(name="x_scales", role="in", dtype="fp32", shape=(expanded,), may_be_empty=True)
        )
    if spec.weights:
        taken.append(Parameter(name="weights", role="in", dtype="fp32", shape=choices))
    taken.append(Parameter(name="token_topk_to_pos", role="in", dtype="int32", shape=choices))
    if spec.scale:
        taken.append(Parameter(name="scale", role="in", dtype="fp32", shape=(1,)))
    taken.append(Parameter(name="y", role="out", dtype=spec.dtype_y, shape=(tokens, spec.hidden)))
    return tuple(taken)


def build(spec: ReduceFusedSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a given tile does not fit UB."""
    tile, why = choose_tile(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, tile, target.vector_cores),
        choices={"columns": tile.columns, "stages": tile.stages, "why": why},
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: ReduceFusedSpec, tile: ColumnTile, cores: int) -> Any:
    """The TileLang function of ``spec``: a stage holds some columns of one token's expert rows.

    Rows of experts elsewhere are not loaded: scalar code packs the others, with their weights, to the front
    of the stage, and the sum runs over as many as there are.
    """
    import tilelang.ascend.language as T

    entry = Entry("reduce_fused", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    hidden, topk = spec.hidden, spec.topk
    columns, stages = tile.columns, tile.stages
    chunks = -(-hidden // columns)
    vectors = columns // VECTOR_LANES
    together = unroll_of(vectors)
    dtype_x, dtype_y = (ELEMENT_TYPES[name].tilelang for name in (spec.dtype, spec.dtype_y))

    @T.macro
    def load_batch(state: Any, first: Any, count: Any) -> None:
        call, (position_ub, weight_ub), _, _ = state
        T.copy(call.token_topk_to_pos[first : first + count, 0:topk], position_ub[0:count, 0:topk])
        if spec.weights:
            T.copy(call.weights[first : first + count, 0:topk], weight_ub[0:count, 0:topk])

    @T.macro
    def factor(ring: Any, slot: Any, row: Any) -> Any:
        """What a row is multiplied by, in every lane."""
        _, factor_ub, row_scale_ub, _ = ring
        if not spec.weights:
            return T.simd.vld(row_scale_ub[slot, row, 0], dist="BRC_B32")
        weight = T.simd.vld(factor_ub[slot, row], dist="BRC_B32")
        if not spec.row_scales:
            return weight
        return T.simd.vmul(weight, T.simd.vld(row_scale_ub[slot, row, 0], dist="BRC_B32"))

    @T.macro
    def store_sum(y_ub: Any, value: Any, slot: Any, at: Any) -> None:
        if spec.dtype_y == "e4m3":
            code = T.simd.vcvt(value, dtype_y, sat=True, part=0)
            T.simd.vsts(y_ub[slot, at], code, dist="PK4_B32")
        else:
            store_wide(spec.dtype_y, y_ub, value, slot, at)

    @T.macro
    def add_up(ring: Any, scale_ub: Any, slot: Any, found: Any) -> None:
        x_ub, _, _, y_ub = ring
        with T.SimdVF():
            total = T.simd.alloc_local((together,), "float32")
            for group in T.serial(T.uint16(vectors // together)):
                for i in T.unroll(together, explicit=True):
                    total[i] = T.simd.vdup(0.0, "float32")
                for row in T.serial(T.cast(found, "uint16")):
                    for i in T.unroll(together, explicit=True):
                        at = (T.cast(group, "int32") * together + i) * VECTOR_LANES
                        value = load_wide(spec.dtype, x_ub, slot, T.cast(row, "int32"), at)
                        if spec.weights or spec.row_scales:
                            T.simd.vmula(total[i], value, factor(ring, slot, T.cast(row, "int32")))
                        else:
                            total[i] = T.simd.vadd(total[i], value)
                for i in T.unroll(together, explicit=True):
                    at = (T.cast(group, "int32") * together + i) * VECTOR_LANES
                    if spec.scale:
                        total[i] = T.simd.vmul(total[i], T.simd.vld(scale_ub[0], dist="BRC_B32"))
                    store_sum(y_ub, total[i], slot, at)

    @T.macro
    def reduce_tokens(state: Any, turn: Any, first: Any, count: Any) -> None:
        call, (position_ub, weight_ub), ring, scale_ub = state
        x_ub, factor_ub, row_scale_ub, y_ub = ring
        place = T.alloc_var("int32")
        found = T.alloc_var("int32")
        column = T.alloc_var("int32")
        width = T.alloc_var("int32")
        for token in T.serial(count):
            for chunk in T.serial(chunks):
                slot = ((turn * TOKEN_BATCH + token) * chunks + chunk) % stages
                column = chunk * columns
                width = T.min(columns, hidden - column)
                found = 0
                T.ascend_wait_flag("MTE3_MTE2", slot)
                if spec.weights:
                    T.ascend_wait_flag("V_S", slot)
                for k in T.serial(topk):
                    place = position_ub[token, k]
                    if place >= 0:
                        T.copy(call.x[place, column : column + width], x_ub[slot, found, 0:width])
                        if spec.row_scales:
                            T.copy(call.x_scales[place : place + 1], row_scale_ub[slot, found, 0:1])
                        if spec.weights:
                            factor_ub[slot, found] = weight_ub[token, k]
                        found = found + 1
                T.ascend_set_flag("MTE2_V", slot)
                T.ascend_wait_flag("MTE2_V", slot)
                if spec.weights:
                    T.ascend_set_flag("S_V", slot)
                    T.ascend_wait_flag("S_V", slot)
                add_up(ring, scale_ub, slot, found)
                if spec.weights:
                    T.ascend_set_flag("V_S", slot)
                T.ascend_set_flag("V_MTE3", slot)
                T.ascend_wait_flag("V_MTE3", slot)
                T.copy(y_ub[slot, 0:width], call.y[first + token, column : column + width])
                T.ascend_set_flag("MTE3_MTE2", slot)

    run = index_batches(TOKEN_BATCH, cores, tokens, event=BATCH_EVENT, load=load_batch, work=reduce_tokens)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            x_ub = T.alloc_shared((stages, topk, columns), dtype_x)
            y_ub = T.alloc_shared((stages, columns), dtype_y)
            position_ub = T.alloc_shared((TOKEN_BATCH, index_pitch(topk)), "int32")
            scale_ub = T.alloc_shared((index_pitch(1),), "float32")
            weight_ub, factor_ub, row_scale_ub = scale_ub, scale_ub, scale_ub
            if spec.weights:
                weight_ub = T.alloc_shared((TOKEN_BATCH, index_pitch(topk)), "float32")
                factor_ub = T.alloc_shared((stages, index_pitch(topk)), "float32")
            if spec.row_scales:
                row_scale_ub = T.alloc_shared((stages, topk, index_pitch(1)), "float32")
            if spec.scale:
                T.copy(call.scale[0:1], scale_ub[0:1])
                T.ascend_set_flag("MTE2_V", SCALE_EVENT)
                T.ascend_wait_flag("MTE2_V", SCALE_EVENT)
            for slot in T.serial(stages):
                T.ascend_set_flag("MTE3_MTE2", slot)
                if spec.weights:
                    T.ascend_set_flag("V_S", slot)
            run((call, (position_ub, weight_ub), (x_ub, factor_ub, row_scale_ub, y_ub), scale_ub), core)
            for slot in T.serial(stages):
                T.ascend_wait_flag("MTE3_MTE2", slot)
                if spec.weights:
                    T.ascend_wait_flag("V_S", slot)

    return entry.prim_func(block)


FAMILY = Family(
    name="reduce_fused",
    summary="the outputs of a token's experts, weighted and summed in order",
    spec_type=ReduceFusedSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(
        *ROW_KERNEL_SOURCES,
        COLUMN_TILE_SOURCE,
        "kaas.kernel_library.routing.index_batches",
        WIDE_VALUE_SOURCE,
    ),
    page=KernelPage(
        computes=(
            "`y[t] = sum over k of x[token_topk_to_pos[t, k]] * weights[t, k]`: in fp32, from 0, in order\n"
            "of k, each step one fused multiply-add, and one rounding to `dtype_y` at the end. Negative\n"
            "positions are left out. With `row_scales` the factor of a row is\n"
            "`fp32(weights[t, k] * x_scales[p])`; without weights it is `x_scales[p]` or nothing. With\n"
            "`scale` the sum is multiplied by it in fp32 before it is rounded. Rounding to e4m3 saturates\n"
            "at 448; bf16 and fp16 overflow to infinity; NaN stays NaN."
        ),
        arguments={
            "x": "outputs of the experts by place",
            "x_scales": "a factor for each place",
            "weights": "routing weights",
            "token_topk_to_pos": "place of the copy for each of a token's experts; -1 for none",
            "scale": "factor of all sums",
            "y": "sums by token",
        },
        tolerance="bit-exact",
        facts=(
            "github.com/deepseek-ai/TileKernels: tile_kernels/moe/reduce_fused_kernel.py (order of the sum, "
            "where each factor enters)",
        ),
        serves=("tile_kernels.moe.reduce_fused",),
        examples=(
            ReduceFusedSpec(hidden=7168, topk=8),
            ReduceFusedSpec(hidden=7168, topk=8, dtype_y="e4m3", row_scales=True, scale=True),
        ),
    ),
)
