"""expand_to_fused: rows of tokens copied to their places in the layout by expert."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.index_batches import INDEX_BYTES, index_batches, index_pitch
from kaas.kernel_library.spec import (
    DTYPE_BYTES,
    DYNAMIC,
    Dim,
    KernelSpec,
    require_dim,
    require_int,
    require_one_of,
    within,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES
from kaas.kernel_library.vector.row_plan import RowPlan, RowTile, padded, plan_rows, require_row_tile
from kaas.proto.dtypes import ELEMENT_TYPES
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

DTYPES = ("bf16", "fp16", "fp32", "e4m3")
SCALES = ("none", "fp32", "e8m0x2")
GROUPS = (32, 128)
MAX_TOPK = 32
TOKEN_BATCH = 128
PLACE_BATCH = 1024
TOKEN_EVENT, PLACE_EVENT, ZERO_EVENT = 6, 7, 7


class ExpandToFusedSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="expand_to_fused"
):
    """Copies of token rows at the places of their experts; padding places become zero.

    Arguments in call order: x[tokens, hidden]; x_scales[tokens, ...] unless ``scales`` is "none";
    token_topk_to_pos[tokens, topk] int32; pos_to_expert[expanded] int32; out[expanded, hidden];
    out_scales[expanded, ...] likewise. Scales are one fp32 per ``group`` values, or e8m0 pairs, one per two
    groups; they need ``dtype`` e4m3.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(16, 65536, multiple_of=16)]
    topk: Annotated[int, within(1, MAX_TOPK)]
    dtype: Literal["bf16", "fp16", "fp32", "e4m3"] = "bf16"
    scales: Literal["none", "fp32", "e8m0x2"] = "none"
    group: Literal[32, 128] = 32
    tokens: Dim = "dynamic"
    expanded: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 16, 65536, multiple_of=16)
        require_int(self.topk, "topk", 1, MAX_TOPK)
        require_one_of(self.dtype, "dtype", DTYPES)
        require_one_of(self.scales, "scales", SCALES)
        require_one_of(self.group, "group", GROUPS)
        if self.scales != "none" and self.dtype != "e4m3":
            raise InvalidSpec(
                f'scales are "{self.scales}", but {self.dtype} rows have none; legal: "none", or dtype e4m3',
                field="scales",
                legal=["none"],
            )
        require_dim(self.tokens, "tokens")
        require_dim(self.expanded, "expanded")
        require_row_tile(self.tile)

    @property
    def scale_columns(self) -> int:
        """Elements in a row of scales; 0 without scales."""
        if self.scales == "none":
            return 0
        return -(-self.hidden // (self.group if self.scales == "fp32" else 2 * self.group))

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: ExpandToFusedSpec, target: Target) -> RowPlan:
    """The row plan; raises :class:`DoesNotFit` if not even one row fits."""
    row = padded(spec.hidden) * DTYPE_BYTES[spec.dtype] + _scale_pitch(spec) * _scale_bytes(spec)
    indices = TOKEN_BATCH * index_pitch(spec.topk) + PLACE_BATCH
    return plan_rows(
        target,
        row_bytes=row,
        fixed_bytes=row + indices * INDEX_BYTES,  # a row of zeros for the padding places
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        passes=0.0,
        what=f"a row of {spec.hidden} {spec.dtype}",
        given=spec.tile,
    )


def _scale_bytes(spec: ExpandToFusedSpec) -> int:
    return 0 if spec.scales == "none" else DTYPE_BYTES[spec.scales]


def _scale_pitch(spec: ExpandToFusedSpec) -> int:
    """Elements of a UB row of scales: whole vector registers, so that zeros are stored without a mask."""
    return 0 if spec.scales == "none" else padded(spec.scale_columns, 256 // _scale_bytes(spec))


def parameters(spec: ExpandToFusedSpec) -> tuple[Parameter, ...]:
    """What a call takes: rows, their scales, both index lists, the copies and their scales."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    expanded: Extent = "expanded" if spec.expanded == DYNAMIC else spec.expanded
    scaled = spec.scales != "none"
    taken = [Parameter(name="x", role="in", dtype=spec.dtype, shape=(tokens, spec.hidden), may_be_empty=True)]
    if scaled:
        shape = (tokens, spec.scale_columns)
        taken.append(Parameter(name="x_scales", role="in", dtype=spec.scales, shape=shape, may_be_empty=True))
    indices = (tokens, spec.topk)
    taken += [
        Parameter(name="token_topk_to_pos", role="in", dtype="int32", shape=indices, may_be_empty=True),
        Parameter(name="pos_to_expert", role="in", dtype="int32", shape=(expanded,)),
        Parameter(name="out", role="out", dtype=spec.dtype, shape=(expanded, spec.hidden)),
    ]
    if scaled:
        shape = (expanded, spec.scale_columns)
        taken.append(Parameter(name="out_scales", role="out", dtype=spec.scales, shape=shape))
    return tuple(taken)


def build(spec: ExpandToFusedSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``: data only moves, so it runs at the speed of the transfers.

    Raises :class:`DoesNotFit` if a row does not fit UB.
    """
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: ExpandToFusedSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: first the zeros of padding places, then the copies of tokens."""
    import tilelang.ascend.language as T

    entry = Entry("expand_to_fused", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    expanded = entry.extent("expanded" if spec.expanded == DYNAMIC else spec.expanded)
    hidden, topk, columns = spec.hidden, spec.topk, spec.scale_columns
    scaled = columns > 0
    rows, stages = plan.rows, plan.stages
    dtype = ELEMENT_TYPES[spec.dtype].tilelang
    scale_dtype = ELEMENT_TYPES[spec.scales].tilelang if scaled else dtype
    groups_per_batch = -(-TOKEN_BATCH // rows)

    @T.macro
    def clear(buffer: Any, elements: int, element: str, element_bytes: int) -> None:
        lanes, bits = 256 // element_bytes, 8 * element_bytes
        with T.SimdVF():
            for vector in T.serial(T.uint16(-(-elements // lanes))):
                zero = T.reinterpret(f"{element}x{lanes}", T.simd.vdup(0, f"uint{bits}"))
                T.simd.vsts(buffer[T.cast(vector, "int32") * lanes], zero, dist=f"NORM_B{bits}")

    @T.macro
    def load_places(state: Any, first: Any, count: Any) -> None:
        call, _, place_ub, _, _ = state
        T.copy(call.pos_to_expert[first : first + count], place_ub[0:count])

    @T.macro
    def zero_padding(state: Any, turn: Any, first: Any, count: Any) -> None:
        call, _, place_ub, (zero_ub, zero_scales_ub), _ = state
        for place in T.serial(count):
            if place_ub[place] < 0:
                T.copy(zero_ub[0:hidden], call.out[first + place, 0:hidden])
                if scaled:
                    T.copy(zero_scales_ub[0:columns], call.out_scales[first + place, 0:columns])

    @T.macro
    def load_positions(state: Any, first: Any, count: Any) -> None:
        call, position_ub, _, _, _ = state
        T.copy(call.token_topk_to_pos[first : first + count, 0:topk], position_ub[0:count, 0:topk])

    @T.macro
    def copy_rows(state: Any, turn: Any, first: Any, count: Any) -> None:
        call, position_ub, _, _, (x_ub, scales_ub) = state
        start = T.alloc_var("int32")
        held = T.alloc_var("int32")
        place = T.alloc_var("int32")
        groups = T.alloc_var("int32")
        groups = T.truncdiv(count + rows - 1, rows)
        for group in T.serial(groups):
            slot = (turn * groups_per_batch + group) % stages
            start = group * rows
            held = T.min(rows, count - start)
            T.ascend_wait_flag("MTE3_MTE2", slot)
            T.copy(call.x[first + start : first + start + held, 0:hidden], x_ub[slot, 0:held, 0:hidden])
            if scaled:
                T.copy(
                    call.x_scales[first + start : first + start + held, 0:columns],
                    scales_ub[slot, 0:held, 0:columns],
                )
            T.ascend_set_flag("MTE2_MTE3", slot)
            T.ascend_wait_flag("MTE2_MTE3", slot)
            for row in T.serial(held):
                for k in T.serial(topk):
                    place = position_ub[start + row, k]
                    if place >= 0:
                        T.copy(x_ub[slot, row, 0:hidden], call.out[place, 0:hidden])
                        if scaled:
                            T.copy(scales_ub[slot, row, 0:columns], call.out_scales[place, 0:columns])
            T.ascend_set_flag("MTE3_MTE2", slot)

    pad_places = index_batches(
        PLACE_BATCH, cores, expanded, event=PLACE_EVENT, load=load_places, work=zero_padding
    )
    copy_tokens = index_batches(
        TOKEN_BATCH, cores, tokens, event=TOKEN_EVENT, load=load_positions, work=copy_rows
    )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            x_ub = T.alloc_shared((stages, rows, padded(hidden)), dtype)
            scales_ub = T.alloc_shared((stages, rows, _scale_pitch(spec)), scale_dtype) if scaled else x_ub
            zero_ub = T.alloc_shared((padded(hidden, 256 // DTYPE_BYTES[spec.dtype]),), dtype)
            zero_scales_ub = T.alloc_shared((_scale_pitch(spec),), scale_dtype) if scaled else zero_ub
            position_ub = T.alloc_shared((TOKEN_BATCH, index_pitch(topk)), "int32")
            place_ub = T.alloc_shared((PLACE_BATCH,), "int32")
            state = (call, position_ub, place_ub, (zero_ub, zero_scales_ub), (x_ub, scales_ub))
            clear(zero_ub, hidden, dtype, DTYPE_BYTES[spec.dtype])
            if scaled:
                clear(zero_scales_ub, columns, scale_dtype, _scale_bytes(spec))
            T.ascend_set_flag("V_MTE3", ZERO_EVENT)
            T.ascend_wait_flag("V_MTE3", ZERO_EVENT)
            for slot in T.serial(stages):
                T.ascend_set_flag("MTE3_MTE2", slot)
            pad_places(state, core)
            copy_tokens(state, core)
            for slot in T.serial(stages):
                T.ascend_wait_flag("MTE3_MTE2", slot)

    return entry.prim_func(block)


FAMILY = Family(
    name="expand_to_fused",
    summary="rows of tokens, with their scales, copied to their places in the layout by expert",
    spec_type=ExpandToFusedSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, "kaas.kernel_library.routing.index_batches"),
    page=KernelPage(
        computes=(
            "`out[token_topk_to_pos[t, k]] = x[t]` for every position that is not negative, and\n"
            "`out[p] = 0` where `pos_to_expert[p] < 0`. Scales follow their rows. Bits are moved, never\n"
            "converted, so NaN payloads and scale codes survive. Places that no token names and that\n"
            "`pos_to_expert` gives an expert keep what they held."
        ),
        arguments={
            "x": "token rows",
            "x_scales": "scales of each row: fp32 per `group` values, or e8m0 pairs per two groups",
            "token_topk_to_pos": "place of the copy for each of a token's experts; -1 for none",
            "pos_to_expert": "expert of each place; negative for padding",
            "out": "rows by place",
            "out_scales": "scales by place, row-major like `x_scales`",
        },
        tolerance="bit-exact",
        facts=(
            "github.com/deepseek-ai/TileKernels: tile_kernels/moe/expand_to_fused_kernel.py (meaning of the "
            "arguments; there four e8m0 share an int32, here two share 16 bits as on Ascend)",
        ),
        serves=(
            "tile_kernels.moe.expand_to_fused",
            "tile_kernels.moe.expand_to_fused_with_sf",
        ),
        examples=(
            ExpandToFusedSpec(hidden=7168, topk=8),
            ExpandToFusedSpec(hidden=7168, topk=8, dtype="e4m3", scales="e8m0x2"),
        ),
    ),
)
