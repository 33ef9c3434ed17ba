"""rope: rotary embedding of some columns of each head, in place."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.index_batches import index_batches
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
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import (
    VECTOR_LANES,
    RowPlan,
    RowTile,
    padded,
    plan_rows,
    require_row_tile,
)
from kaas.kernel_library.vector.wide_values import WIDE_VALUE_SOURCE, load_wide, rounded
from kaas.proto.dtypes import ELEMENT_TYPES
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

ROTARY = (32, 64, 128, 256)
POSITIONS = ("none", "int32", "int64")
POSITION_BATCH = 512
BATCH_EVENT = 6
PAIR_COLUMNS = 2 * VECTOR_LANES
"""Columns of interleaved pairs that fill two fp32 registers."""


class RopeSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="rope"):
    """Rotation of pairs of columns by the angles of a token's position, fp32 inside.

    Arguments in call order: x[tokens, heads, width] of ``dtype``, updated in place; cos_sin[table, rotary]
    fp32, cosines in the left half and sines in the right; positions[tokens] unless ``positions`` is "none",
    when token t is at position t; offset, an int32 added to every position, if ``offset``. The first or last
    ``rotary`` columns of each head are rotated, the others are not touched. Pairs are neighbours if
    ``interleaved``, else column i and column i + rotary/2. ``inverse`` rotates back.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    heads: Annotated[int, within(1, 256)]
    width: Annotated[int, within(32, 4096, multiple_of=16)]
    rotary: Literal[32, 64, 128, 256] = 64
    part: Literal["first", "last"] = "last"
    dtype: Dtype = "bf16"
    interleaved: bool = True
    inverse: bool = False
    positions: Literal["none", "int32", "int64"] = "int32"
    offset: bool = False
    tokens: Dim = "dynamic"
    table: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.heads, "heads", 1, 256)
        require_int(self.width, "width", 32, 4096, multiple_of=16)
        require_one_of(self.rotary, "rotary", ROTARY)
        if self.rotary > self.width:
            legal = [rotary for rotary in ROTARY if rotary <= self.width]
            raise InvalidSpec(
                f"rotary is {self.rotary}, but a head has {self.width} columns; legal: {legal}",
                field="rotary",
                legal=legal,
            )
        require_one_of(self.part, "part", ("first", "last"))
        require_one_of(self.dtype, "dtype", ("bf16", "fp16", "fp32"))
        require_bool(self.interleaved, "interleaved")
        require_bool(self.inverse, "inverse")
        require_one_of(self.positions, "positions", POSITIONS)
        require_bool(self.offset, "offset")
        require_dim(self.tokens, "tokens")
        require_dim(self.table, "table")
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a token does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: RopeSpec, target: Target) -> RowPlan:
    """The row plan, a row being a token; raises :class:`DoesNotFit` if not even one fits."""
    x_bytes = _held_heads(spec) * spec.rotary * DTYPE_BYTES[spec.dtype]
    return plan_rows(
        target,
        row_bytes=x_bytes + 2 * _angles(spec) * DTYPE_BYTES["fp32"],
        fixed_bytes=0 if spec.positions == "none" else POSITION_BATCH * DTYPE_BYTES[spec.positions],
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        passes=2.0,
        what=f"{spec.heads} heads of {spec.rotary} {spec.dtype}",
        field="heads",
        given=spec.tile,
    )


def _angles(spec: RopeSpec) -> int:
    """Elements of a UB row of cosines, or of sines: at least a whole register."""
    return max(spec.rotary // 2, VECTOR_LANES)


def _held_heads(spec: RopeSpec) -> int:
    """Heads of a token in UB, with room for what the last register reads, or writes, behind the last head."""
    columns = spec.heads * spec.rotary
    if spec.interleaved:
        return padded(columns, PAIR_COLUMNS) // spec.rotary
    behind = max(VECTOR_LANES - spec.rotary // 2, 0)
    return -(-(columns + behind) // spec.rotary)


def parameters(spec: RopeSpec) -> tuple[Parameter, ...]:
    """What a call takes: x, the table, where its tokens are."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    table: Extent = "table" if spec.table == DYNAMIC else spec.table
    taken = [
        Parameter(name="x", role="inout", dtype=spec.dtype, shape=(tokens, spec.heads, spec.width)),
        Parameter(name="cos_sin", role="in", dtype="fp32", shape=(table, spec.rotary)),
    ]
    if spec.positions != "none":
        taken.append(Parameter(name="positions", role="in", dtype=spec.positions, shape=(tokens,)))
    if spec.offset:
        taken.append(Parameter(name="offset", role="scalar", dtype="int32"))
    return tuple(taken)


def build(spec: RopeSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a token does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: RopeSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: only the rotated columns come to UB."""
    import tilelang.ascend.language as T

    entry = Entry("rope", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    heads, rotary, half = spec.heads, spec.rotary, spec.rotary // 2
    start = spec.width - rotary if spec.part == "last" else 0
    angles = _angles(spec)
    copies = angles // half if spec.interleaved else 1
    rows, stages = plan.rows, plan.stages
    groups_per_batch = -(-POSITION_BATCH // rows)
    # Several tokens are one transfer where the distance between heads is the same in both memories.
    one_transfer = heads in (1, _held_heads(spec))
    dtype = ELEMENT_TYPES[spec.dtype].tilelang

    @T.macro
    def rotated(first: Any, second: Any, cosine: Any, sine: Any) -> Any:
        """Both members of 64 pairs; of two products one is fused into the sum."""
        pair = T.simd.alloc_local((2,), "float32")
        pair[0] = T.simd.vmul(second, sine)
        pair[1] = T.simd.vmul(second, cosine)
        if not spec.inverse:
            pair[0] = T.simd.vneg(pair[0])
        T.simd.vmula(pair[0], first, cosine)
        T.simd.vmula(pair[1], first, T.simd.vneg(sine) if spec.inverse else sine)
        return pair

    @T.macro
    def rotate_neighbours(x_ub: Any, table_ub: Any, slot: Any, row: Any) -> None:
        for group in T.serial(T.uint16(_held_heads(spec) * rotary // PAIR_COLUMNS)):
            at = T.cast(group, "int32") * PAIR_COLUMNS
            # Heads wider than a register pair take its angles in turn.
            angle = (at % rotary) // 2 if rotary > PAIR_COLUMNS else 0
            cosine = T.simd.vld(table_ub[slot, row, angle])
            sine = T.simd.vld(table_ub[slot, row, angles + angle])
            head, column = at // rotary, at % rotary
            if spec.dtype == "fp32":
                first, second = T.simd.vld2(x_ub[slot, row, head, column], dist="DINTLV_B32")
                pair = rotated(first, second, cosine, sine)
                left, right = T.simd.vintlv(pair[0], pair[1])
                T.simd.vsts(x_ub[slot, row, head, column], left)
                T.simd.vsts(
                    x_ub[slot, row, (at + VECTOR_LANES) // rotary, (at + VECTOR_LANES) % rotary],
                    right,
                )
            else:
                both = T.simd.vld(x_ub[slot, row, head, column])
                pair = rotated(
                    T.simd.vcvt(both, "float32", part=0), T.simd.vcvt(both, "float32", part=1), cosine, sine
                )
                even = T.reinterpret("uint16x128", T.simd.vcvt(pair[0], dtype, sat=False, part=0))
                odd = T.reinterpret("uint16x128", T.simd.vcvt(pair[1], dtype, sat=False, part=1))
                merged = T.reinterpret(f"{dtype}x128", T.simd.vor(even, odd))
                T.simd.vsts(x_ub[slot, row, head, column], merged, dist="NORM_B16")

    @T.macro
    def store_half(x_ub: Any, value: Any, *at: Any) -> None:
        """Not more than half a head."""
        T.simd.vsts(
            x_ub[at],
            rounded(spec.dtype, value),
            T.simd.update_mask(T.uint32(min(half, VECTOR_LANES)), 32),
            dist="NORM_B32" if spec.dtype == "fp32" else "PK_B32",
        )

    @T.macro
    def rotate_halves(x_ub: Any, table_ub: Any, slot: Any, row: Any) -> None:
        for vector in T.unroll(-(-half // VECTOR_LANES), explicit=True):
            at = vector * VECTOR_LANES
            cosine = T.simd.vld(table_ub[slot, row, at])
            sine = T.simd.vld(table_ub[slot, row, angles + at])
            for each in T.serial(T.uint16(heads)):
                head = T.cast(each, "int32")
                first = load_wide(spec.dtype, x_ub, slot, row, head, at)
                second = load_wide(spec.dtype, x_ub, slot, row, head, half + at)
                pair = rotated(first, second, cosine, sine)
                store_half(x_ub, pair[0], slot, row, head, at)
                store_half(x_ub, pair[1], slot, row, head, half + at)

    @T.macro
    def load_angles(call: Any, table_ub: Any, slot: Any, row: Any, count: Any, place: Any) -> None:
        """Rows ``place`` to ``place + count`` of the table, cosines and sines apart, once for each copy."""
        for side in range(2):
            for copy in range(copies):
                left = side * angles + copy * half
                T.copy(
                    call.cos_sin[place : place + count, side * half : (side + 1) * half],
                    table_ub[slot, row : row + count, left : left + half],
                )

    @T.macro
    def load_columns(call: Any, x_ub: Any, slot: Any, first: Any, count: Any) -> None:
        if one_transfer:
            T.copy(
                call.x[first : first + count, 0:heads, start : start + rotary],
                x_ub[slot, 0:count, 0:heads, 0:rotary],
            )
        else:
            for row in T.serial(count):
                T.copy(
                    call.x[first + row, 0:heads, start : start + rotary], x_ub[slot, row, 0:heads, 0:rotary]
                )

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, (x_ub, table_ub), _ = state
        load_columns(call, x_ub, slot, first, count)
        load_angles(call, table_ub, slot, 0, count, first + (call.offset if spec.offset else 0))

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, (x_ub, table_ub), _ = state
        with T.SimdVF():
            for each in T.serial(T.cast(count, "uint16")):
                if spec.interleaved:
                    rotate_neighbours(x_ub, table_ub, slot, T.cast(each, "int32"))
                else:
                    rotate_halves(x_ub, table_ub, slot, T.cast(each, "int32"))

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, (x_ub, _), _ = state
        if one_transfer:
            T.copy(
                x_ub[slot, 0:count, 0:heads, 0:rotary],
                call.x[first : first + count, 0:heads, start : start + rotary],
            )
        else:
            for row in T.serial(count):
                T.copy(
                    x_ub[slot, row, 0:heads, 0:rotary], call.x[first + row, 0:heads, start : start + rotary]
                )

    @T.macro
    def load_positions(state: Any, first: Any, count: Any) -> None:
        call, _, position_ub = state
        T.copy(call.positions[first : first + count], position_ub[0:count])

    @T.macro
    def rotate_batch(state: Any, turn: Any, first: Any, count: Any) -> None:
        call, (x_ub, table_ub), position_ub = state
        begin = T.alloc_var("int32")
        held = T.alloc_var("int32")
        place = T.alloc_var("int32")
        groups = T.alloc_var("int32")
        groups = T.truncdiv(count + rows - 1, rows)
        for group in T.serial(groups):
            slot = (turn * groups_per_batch + group) % stages
            begin = group * rows
            held = T.min(rows, count - begin)
            T.ascend_wait_flag("MTE3_MTE2", slot)
            load_columns(call, x_ub, slot, first + begin, held)
            for row in T.serial(held):
                place = T.cast(position_ub[begin + row], "int32") + (call.offset if spec.offset else 0)
                load_angles(call, table_ub, slot, row, 1, place)
            T.ascend_set_flag("MTE2_V", slot)
            T.ascend_wait_flag("MTE2_V", slot)
            compute(state, slot, first + begin, held)
            T.ascend_set_flag("V_MTE3", slot)
            T.ascend_wait_flag("V_MTE3", slot)
            store(state, slot, first + begin, held)
            T.ascend_set_flag("MTE3_MTE2", slot)

    gathered = spec.positions != "none"
    if gathered:
        run = index_batches(
            POSITION_BATCH, cores, tokens, event=BATCH_EVENT, load=load_positions, work=rotate_batch
        )
    else:
        run = row_pipeline(plan, cores, tokens, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            x_ub = T.alloc_shared((stages, rows, _held_heads(spec), rotary), dtype)
            table_ub = T.alloc_shared((stages, rows, 2 * angles), "float32")
            position_ub = T.alloc_shared((POSITION_BATCH,), spec.positions) if gathered else table_ub
            if gathered:
                for slot in T.serial(stages):
                    T.ascend_set_flag("MTE3_MTE2", slot)
            run((call, (x_ub, table_ub), position_ub), core)
            if gathered:
                for slot in T.serial(stages):
                    T.ascend_wait_flag("MTE3_MTE2", slot)

    return entry.prim_func(block)


FAMILY = Family(
    name="rope",
    summary="rotary embedding of the first or last columns of each head, in place, forward or inverse",
    spec_type=RopeSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, "kaas.kernel_library.routing.index_batches", WIDE_VALUE_SOURCE),
    page=KernelPage(
        computes=(
            "For each pair `(a, b)` of rotated columns and the angle of its token's position:\n\n"
            "    a' = a*cos - b*sin        inverse:  a' = a*cos + b*sin\n"
            "    b' = a*sin + b*cos                  b' = b*cos - a*sin\n\n"
            "in fp32, the product with `b` rounded, the product with `a` fused into the sum, then one\n"
            "rounding to `dtype`. Query and key are two calls. A position outside the table is the caller's\n"
            "mistake: its rows come out undefined."
        ),
        arguments={
            "x": "heads of each token; columns that are not rotated are neither read nor written",
            "cos_sin": "a row per position: cosines of the rotary/2 angles, then their sines",
            "positions": "position of each token",
            "offset": "added to every position",
        },
        tolerance="bit-exact",
        facts=(
            "github.com/deepseek-ai/TileKernels: tile_kernels/transform/rope_kernel.py (arguments, pairing, "
            "table) and rope_cuda.py (which products are fused)",
        ),
        serves=("tile_kernels.transform.apply_rotary",),
        examples=(
            RopeSpec(heads=128, width=192),
            RopeSpec(heads=1, width=576, interleaved=False, positions="none", offset=True),
        ),
    ),
)
