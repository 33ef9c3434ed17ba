"""rmsnorm_backward: gradients of rmsnorm with respect to its rows and its weight."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

import msgspec

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DTYPE_BYTES,
    DYNAMIC,
    Dim,
    Dtype,
    KernelSpec,
    require_bool,
    require_dim,
    require_float,
    require_int,
    require_one_of,
    within,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline, row_stage
from kaas.kernel_library.vector.row_plan import ROW_COUNTS, VECTOR_LANES, RowBytes, RowPlan, padded, plan_rows
from kaas.kernel_library.vector.wide_values import (
    TILELANG_DTYPE,
    WIDE_VALUE_SOURCE,
    load_wide,
    store_wide,
    unroll_of,
)
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

DTYPES = ("bf16", "fp16", "fp32")
PARTS = 256
"""The rows are summed in so many parts, whatever the core count is; see the page."""
TILE_PARTS = 64
"""Parts that are added up per load, 64 columns at a time."""
_PART_FLAG = 4
"""Event of the sums of a part; those below are the stages'."""
_MOST_ROWS = 16
"""A part of 4096 rows has 16: a stage of more would stay empty."""
MAX_OUT_SCALE = 65536.0
"""As for rmsnorm."""


class RmsNormBackwardSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="rmsnorm_backward"
):
    """Gradients of rmsnorm on the vector cores, fp32 inside.

    Arguments in call order: dy[tokens, hidden]; x[tokens, hidden], what was normalised (with a residual, the
    sum); weight[hidden] if ``weight``; rstd[tokens] fp32, from rmsnorm; residual_grad[tokens, hidden] if
    ``residual_grad``, added to dx; dx[tokens, hidden]. All but rstd have ``dtype``. With a weight follow
    partials[256, hidden] fp32, room for sums over parts of the rows, and dweight[hidden] of
    ``dtype_dweight``, added to if ``accumulate``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(64, 32768, multiple_of=16)]
    dtype: Dtype = "bf16"
    weight: bool = True
    dtype_dweight: Dtype = "fp32"
    accumulate: bool = False
    residual_grad: bool = False
    out_scale: Annotated[float, within(-MAX_OUT_SCALE, MAX_OUT_SCALE)] = 1.0
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 64, 32768, multiple_of=16)
        require_one_of(self.dtype, "dtype", DTYPES)
        require_bool(self.weight, "weight")
        require_one_of(self.dtype_dweight, "dtype_dweight", DTYPES)
        require_bool(self.accumulate, "accumulate")
        require_bool(self.residual_grad, "residual_grad")
        require_float(self.out_scale, "out_scale", -MAX_OUT_SCALE, MAX_OUT_SCALE)
        require_dim(self.tokens, "tokens")
        if not self.weight and self.accumulate:
            raise InvalidSpec(
                "accumulate adds to dweight, and there is no weight", field="accumulate", legal=[False]
            )
        if not self.weight and self.dtype_dweight != "fp32":
            raise InvalidSpec(
                f"dtype_dweight is {self.dtype_dweight}, but there is no weight",
                field="dtype_dweight",
                legal=["fp32"],
            )

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: RmsNormBackwardSpec, target: Target) -> RowPlan:
    """The row plan: a stage holds x, dy, which dx replaces, the residual's gradient and rstd.

    Outside the ring lie the weight, this core's sums, and the parts that are added up at the end.
    """
    need = _row_bytes(spec)
    return plan_rows(
        target,
        row_bytes=need.staged,
        fixed_bytes=need.fixed,
        unstaged_row_bytes=need.unstaged,
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        passes=4.0,
        what=f"a row of {spec.hidden} {spec.dtype} with its gradients",
        row_counts=tuple(count for count in ROW_COUNTS if count <= _MOST_ROWS) if spec.weight else ROW_COUNTS,
    )


def _row_bytes(spec: RmsNormBackwardSpec) -> RowBytes:
    pitch, element_bytes = padded(spec.hidden), DTYPE_BYTES[spec.dtype]
    fixed = 256  # starts of rstd by stage, and of the means, at multiples of 32 bytes
    if spec.weight:
        fixed += pitch * (element_bytes + 4) + 4 * VECTOR_LANES * (2 * TILE_PARTS + 3)
    return RowBytes(pitch * element_bytes * (3 if spec.residual_grad else 2) + 4, 4, fixed)


def build(spec: RmsNormBackwardSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores and UB size.

    Raises :class:`DoesNotFit` if a row does not fit UB.
    """
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: RmsNormBackwardSpec) -> tuple[Parameter, ...]:
    """What a call takes; see :class:`RmsNormBackwardSpec`. Without tokens, dweight is still written."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    empty = spec.weight

    def rows(name: str, role: Any = "in") -> Parameter:
        shape = (tokens, spec.hidden)
        return Parameter(name=name, role=role, dtype=spec.dtype, shape=shape, may_be_empty=empty)

    taken = [rows("dy"), rows("x")]
    if spec.weight:
        taken.append(Parameter(name="weight", role="in", dtype=spec.dtype, shape=(spec.hidden,)))
    taken.append(Parameter(name="rstd", role="in", dtype="fp32", shape=(tokens,), may_be_empty=empty))
    if spec.residual_grad:
        taken.append(rows("residual_grad"))
    taken.append(rows("dx", "out"))
    if spec.weight:
        taken.append(Parameter(name="partials", role="out", dtype="fp32", shape=(PARTS, spec.hidden)))
        role: Any = "inout" if spec.accumulate else "out"
        taken.append(Parameter(name="dweight", role=role, dtype=spec.dtype_dweight, shape=(spec.hidden,)))
    return tuple(taken)


class _State(msgspec.Struct, frozen=True):
    """The call and the UB of a block: rows and rstd by stage; the rest once."""

    call: Any
    x: Any
    dy: Any
    residual_grad: Any
    rstd: Any
    mean: Any
    weight: Any
    sums: Any


def _program(spec: RmsNormBackwardSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: dx and sums over parts of the rows, then their sum."""
    import tilelang.ascend.language as T

    entry = Entry("rmsnorm_backward", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    load, compute, store = _row_macros(spec)
    rows = row_pipeline(plan, cores, tokens, load=load, compute=compute, store=store)
    parts = _part_pipeline(spec, plan, cores, tokens, load, compute, store)
    add_up = _part_sum(spec, cores)
    pitch, element = padded(spec.hidden), TILELANG_DTYPE[spec.dtype]

    def allocate(call: Any) -> _State:
        stage = (plan.stages, plan.rows, pitch)
        return _State(
            call=call,
            x=T.alloc_shared(stage, element),
            dy=T.alloc_shared(stage, element),
            residual_grad=T.alloc_shared(stage, element) if spec.residual_grad else None,
            rstd=T.alloc_shared((plan.stages, padded(plan.rows, 8)), "float32"),
            mean=T.alloc_shared((padded(plan.rows, 8),), "float32"),
            weight=T.alloc_shared((pitch,), element) if spec.weight else None,
            sums=T.alloc_shared((pitch,), "float32") if spec.weight else None,
        )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            state = allocate(call)
            if spec.weight:
                used = T.alloc_var("int32")
                used = parts(state, core)
                add_up(call, core, used)
            else:
                rows(state, core)

    return entry.prim_func(block)


def _row_macros(spec: RmsNormBackwardSpec) -> tuple[Any, Any, Any]:
    """load, compute (which adds to ``state.sums``) and store of a stage, as :func:`row_pipeline` has them."""
    import tilelang.ascend.language as T

    dtype, hidden = spec.dtype, spec.hidden
    vectors = padded(hidden) // VECTOR_LANES
    full_vectors, tail = divmod(hidden, VECTOR_LANES)
    unroll = unroll_of(full_vectors)

    @T.macro
    def scaled_gradient(state: Any, slot: Any, row: Any, at: Any) -> Any:
        dy = load_wide(dtype, state.dy, slot, row, at)
        if spec.out_scale != 1.0:
            dy = T.simd.vmuls(dy, spec.out_scale)
        return dy

    @T.macro
    def summand(state: Any, rstd: Any, slot: Any, row: Any, at: Any) -> Any:
        """normalised x times the gradient that reached it."""
        normalised = T.simd.vmul(load_wide(dtype, state.x, slot, row, at), rstd)
        gradient = scaled_gradient(state, slot, row, at)
        if spec.weight:
            gradient = T.simd.vmul(gradient, load_wide(dtype, state.weight, at))
        return T.simd.vmul(normalised, gradient)

    @T.macro
    def store_mean(state: Any, slot: Any, row: Any) -> None:
        """The mean of the summands of a row, to ``state.mean``."""
        rstd = T.simd.vld(state.rstd[slot, row], dist="BRC_B32")
        partial = T.simd.alloc_local((unroll,), "float32")
        for i in T.unroll(unroll, explicit=True):
            partial[i] = T.simd.vdup(0.0, "float32")
        for group in T.serial(T.uint16(full_vectors // unroll)):
            for i in T.unroll(unroll, explicit=True):
                at = (T.cast(group, "int32") * unroll + i) * VECTOR_LANES
                partial[i] = T.simd.vadd(partial[i], summand(state, rstd, slot, row, at))
        if tail:
            # The lanes behind the row hold anything: multiplying under the mask zeroes them.
            last = summand(state, rstd, slot, row, full_vectors * VECTOR_LANES)
            last = T.simd.vmuls(last, 1.0, T.simd.update_mask(T.uint32(tail), 32))
            partial[0] = T.simd.vadd(partial[0], last)
        for i in T.unroll(1, unroll, explicit=True):
            partial[0] = T.simd.vadd(partial[0], partial[i])
        mean = T.simd.vmuls(T.simd.vcadd(partial[0]), 1.0 / hidden)
        T.simd.vsts(state.mean[row], mean, dist="ONEPT_B32")

    @T.macro
    def column(state: Any, slot: Any, count: Any, at: Any) -> None:
        """64 columns of all rows: dx, and the sums over the rows in their order."""
        sums = T.simd.alloc_local((1,), "float32")
        if spec.weight:
            weight = load_wide(dtype, state.weight, at)
            sums[0] = T.simd.vld(state.sums[at])
        for row_index in T.serial(T.cast(count, "uint16")):
            row = T.cast(row_index, "int32")
            rstd = T.simd.vld(state.rstd[slot, row], dist="BRC_B32")
            mean = T.simd.vld(state.mean[row], dist="BRC_B32")
            normalised = T.simd.vmul(load_wide(dtype, state.x, slot, row, at), rstd)
            gradient = scaled_gradient(state, slot, row, at)
            if spec.weight:
                T.simd.vmula(sums[0], normalised, gradient)
                gradient = T.simd.vmul(gradient, weight)
            dx = T.simd.vmul(T.simd.vsub(gradient, T.simd.vmul(normalised, mean)), rstd)
            if spec.residual_grad:
                dx = T.simd.vadd(dx, load_wide(dtype, state.residual_grad, slot, row, at))
            store_wide(dtype, state.dy, dx, slot, row, at)
        if spec.weight:
            T.simd.vsts(state.sums[at], sums[0])

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call = state.call
        T.copy(call.dy[first : first + count, 0:hidden], state.dy[slot, 0:count, 0:hidden])
        T.copy(call.x[first : first + count, 0:hidden], state.x[slot, 0:count, 0:hidden])
        T.copy(call.rstd[first : first + count], state.rstd[slot, 0:count])
        if spec.residual_grad:
            T.copy(
                call.residual_grad[first : first + count, 0:hidden],
                state.residual_grad[slot, 0:count, 0:hidden],
            )

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        with T.SimdVF():
            for row in T.serial(T.cast(count, "uint16")):
                store_mean(state, slot, T.cast(row, "int32"))
            T.simd.mem_bar("VST_VLD")
            for vector in T.serial(T.uint16(vectors)):
                column(state, slot, count, T.cast(vector, "int32") * VECTOR_LANES)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        T.copy(state.dy[slot, 0:count, 0:hidden], state.call.dx[first : first + count, 0:hidden])

    return load, compute, store


def _part_pipeline(
    spec: RmsNormBackwardSpec, plan: RowPlan, cores: int, tokens: Any, load: Any, compute: Any, store: Any
) -> Any:
    """A macro ``run(state, core)``: every part's rows on one core, its sums to ``partials``.

    Returns how many parts there are: 256 of ``ceil(tokens / 256)`` rows, fewer at the end of the rows.
    """
    import tilelang.ascend.language as T

    stages, most, hidden = plan.stages, plan.rows, spec.hidden
    stage = row_stage(load, compute, store)

    @T.macro
    def clear(sums: Any) -> None:
        with T.SimdVF():
            for vector in T.serial(T.uint16(padded(hidden) // VECTOR_LANES)):
                T.simd.vsts(sums[T.cast(vector, "int32") * VECTOR_LANES], T.simd.vdup(0.0, "float32"))

    @T.macro
    def run(state: Any, core: Any) -> Any:
        part_rows = T.alloc_var("int32")
        parts = T.alloc_var("int32")
        mine = T.alloc_var("int32")
        turn = T.alloc_var("int32")
        first = T.alloc_var("int32")
        last = T.alloc_var("int32")
        steps = T.alloc_var("int32")
        part_rows = T.max(T.truncdiv(tokens + PARTS - 1, PARTS), 1)
        parts = T.truncdiv(tokens + part_rows - 1, part_rows)
        mine = T.truncdiv(parts + cores - 1 - core, cores)
        turn = 0
        for slot in T.serial(stages):
            T.ascend_set_flag("MTE3_MTE2", slot)
        T.ascend_set_flag("MTE3_V", 0)
        T.copy(state.call.weight[0:hidden], state.weight[0:hidden])
        for index in T.serial(mine):
            first = (index * cores + core) * part_rows
            last = T.min(first + part_rows, tokens)
            T.ascend_wait_flag("MTE3_V", 0)
            clear(state.sums)
            steps = T.truncdiv(last - first + most - 1, most)
            for step in T.serial(steps):
                stage(state, turn % stages, first + step * most, T.min(most, last - first - step * most))
                turn = turn + 1
            T.ascend_set_flag("V_MTE3", _PART_FLAG)
            T.ascend_wait_flag("V_MTE3", _PART_FLAG)
            T.copy(state.sums[0:hidden], state.call.partials[index * cores + core, 0:hidden])
            T.ascend_set_flag("MTE3_V", 0)
        T.ascend_wait_flag("MTE3_V", 0)
        for slot in T.serial(stages):
            T.ascend_wait_flag("MTE3_MTE2", slot)
        return parts

    return run


def _part_sum(spec: RmsNormBackwardSpec, cores: int) -> Any:
    """A macro ``run(call, core, parts)``: once all cores are here, dweight from the parts, in their order."""
    import tilelang.ascend.language as T

    hidden, dtype = spec.hidden, spec.dtype_dweight
    element = TILELANG_DTYPE[dtype]
    blocks = padded(hidden) // VECTOR_LANES

    @T.macro
    def add(total_ub: Any, part_ub: Any, slot: Any, count: Any) -> None:
        with T.SimdVF():
            total = T.simd.alloc_local((1,), "float32")
            total[0] = T.simd.vld(total_ub[0])
            for part in T.serial(T.cast(count, "uint16")):
                total[0] = T.simd.vadd(total[0], T.simd.vld(part_ub[slot, T.cast(part, "int32"), 0]))
            T.simd.vsts(total_ub[0], total[0])

    @T.macro
    def clear(total_ub: Any) -> None:
        with T.SimdVF():
            T.simd.vsts(total_ub[0], T.simd.vdup(0.0, "float32"))

    @T.macro
    def finish(total_ub: Any, old_ub: Any, result_ub: Any) -> None:
        with T.SimdVF():
            total = T.simd.vld(total_ub[0])
            if spec.accumulate:
                total = T.simd.vadd(total, load_wide(dtype, old_ub, 0))
            store_wide(dtype, result_ub, total, 0)

    @T.macro
    def run(call: Any, core: Any, parts: Any) -> None:
        part_ub = T.alloc_shared((2, TILE_PARTS, VECTOR_LANES), "float32")
        total_ub = T.alloc_shared((VECTOR_LANES,), "float32")
        old_ub = T.alloc_shared((VECTOR_LANES,), element)
        result_ub = T.alloc_shared((VECTOR_LANES,), element)
        tiles = T.alloc_var("int32")
        mine = T.alloc_var("int32")
        turn = T.alloc_var("int32")
        first = T.alloc_var("int32")
        count = T.alloc_var("int32")
        at = T.alloc_var("int32")
        T.ascend_sync_inter_arrive("PIPE_MTE3", 0)
        T.ascend_sync_inter_wait("PIPE_MTE2", 0)
        tiles = T.truncdiv(parts + TILE_PARTS - 1, TILE_PARTS)
        mine = T.truncdiv(blocks + cores - 1 - core, cores)
        turn = 0
        for slot in T.serial(3):
            T.ascend_set_flag("V_MTE2", slot)
        T.ascend_set_flag("MTE3_V", 0)
        for index in T.serial(mine):
            at = (index * cores + core) * VECTOR_LANES
            if spec.accumulate:
                T.ascend_wait_flag("V_MTE2", 2)
                T.copy(call.dweight[at : at + VECTOR_LANES], old_ub)
                T.ascend_set_flag("MTE2_V", 2)
            clear(total_ub)
            for tile in T.serial(tiles):
                first = tile * TILE_PARTS
                count = T.min(TILE_PARTS, parts - first)
                T.ascend_wait_flag("V_MTE2", turn % 2)
                T.copy(
                    call.partials[first : first + count, at : at + VECTOR_LANES],
                    part_ub[turn % 2, 0:count, 0:VECTOR_LANES],
                )
                T.ascend_set_flag("MTE2_V", turn % 2)
                T.ascend_wait_flag("MTE2_V", turn % 2)
                add(total_ub, part_ub, turn % 2, count)
                T.ascend_set_flag("V_MTE2", turn % 2)
                turn = turn + 1
            T.ascend_wait_flag("MTE3_V", 0)
            if spec.accumulate:
                T.ascend_wait_flag("MTE2_V", 2)
            finish(total_ub, old_ub, result_ub)
            if spec.accumulate:
                T.ascend_set_flag("V_MTE2", 2)
            T.ascend_set_flag("V_MTE3", 0)
            T.ascend_wait_flag("V_MTE3", 0)
            T.copy(result_ub, call.dweight[at : at + VECTOR_LANES])
            T.ascend_set_flag("MTE3_V", 0)
        T.ascend_wait_flag("MTE3_V", 0)
        for slot in T.serial(3):
            T.ascend_wait_flag("V_MTE2", slot)

    return run


PAGE = KernelPage(
    computes="""
With `n = x * rstd` and `g = dy * out_scale * weight` (a factor that is not there is left out):

`dx = (g - n * mean(n * g)) * rstd` for each row, plus `residual_grad` if asked for; the mean is over
the row.

`dweight = sum over rows of n * dy * out_scale`, added to what dweight holds if `accumulate`.

x is what the forward pass normalised (with a residual, the sum that it wrote back) and rstd is what it
returned. When the forward pass added a residual, dx is the residual's gradient as well. The arithmetic
is fp32; dx and dweight are rounded once.

*Order of the sum.* The rows are cut into 256 parts of `ceil(tokens / 256)` consecutive rows (the last
ones may be short or missing). One core adds up the rows of a part in their order, in fp32 with fused
multiply-adds, and writes the sums to `partials`; once all parts are there, each column of dweight is
the sum over the parts in their order. Nothing of this depends on the number of cores, so that dweight
has the same bits on every part number and in every run. Rows of `partials` for missing parts are not
written.

*NaN and infinity.* A NaN or an infinity in a row makes that row of dx NaN, and the columns of dweight
that it is multiplied into. Without tokens dweight is zero, or unchanged if `accumulate`.
""",
    arguments={
        "dy": "gradient of y",
        "x": "what the forward pass normalised",
        "weight": "one factor per column",
        "rstd": "reciprocal root mean square of each row, from the forward pass",
        "residual_grad": "gradient of the sum that the forward pass wrote back",
        "dx": "gradient of x, and of the residual",
        "partials": "workspace: sums over parts of the rows; its old content does not matter",
        "dweight": "gradient of the weight",
    },
    tolerance="dx: one rounding to `dtype`, and 2^-20 of the largest sum of magnitudes "
    "`(|g| + |n| mean|n g|) rstd + |residual_grad|`; dweight: one rounding to `dtype_dweight`, and 2^-20 of "
    "the largest sum of magnitudes of a column; both exactly where the arithmetic is",
    facts=(
        "TileKernels 2.0.0, tile_kernels/quant/norm_backward_kernel.py and tile_kernels/torch/norm.py: "
        "formulas, accumulation into a given weight gradient",
    ),
    serves=("tile_kernels.quant.norm_backward",),
    examples=(
        RmsNormBackwardSpec(hidden=7168),
        RmsNormBackwardSpec(hidden=7168, residual_grad=True, accumulate=True),
    ),
)

FAMILY = Family(
    name="rmsnorm_backward",
    summary="gradients of rmsnorm with respect to its rows and its weight",
    spec_type=RmsNormBackwardSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    page=PAGE,
    sources=(*ROW_KERNEL_SOURCES, WIDE_VALUE_SOURCE),
)
