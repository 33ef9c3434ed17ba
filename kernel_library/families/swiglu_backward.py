"""swiglu_backward: gradients of swiglu with respect to its rows and their weights."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

import msgspec

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.expert_rows import (
    DEFAULT_ALIGNMENT,
    EXPERT_ROW_SOURCE,
    Experts,
    TokenAlignment,
    ends_bytes,
    require_expert_rows,
    row_counts_within,
    valid_rows,
)
from kaas.kernel_library.spec import (
    DTYPE_BYTES,
    DYNAMIC,
    Dim,
    KernelSpec,
    require_bool,
    require_dim,
    require_int,
    require_one_of,
    within,
)
from kaas.kernel_library.vector.cast_output import (
    BLOCK,
    CAST_OUTPUT_SOURCES,
    Cast,
    ScaleDtype,
    SingleStage,
    cast_parameters,
    quantiser_of,
    require_cast,
)
from kaas.kernel_library.vector.gated_activation import (
    GATED_ACTIVATION_SOURCE,
    Clamp,
    FloatDtype,
    require_clamp,
    require_weights_for_scaling,
    sigmoid_denominator,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
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


class SwigluBackwardSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="swiglu_backward"
):
    """Gradients of SwiGLU on the vector cores, fp32 inside.

    Arguments in call order: x[tokens, 2*hidden] of ``dtype``, gate left and up right; x_scales[tokens,
    2*hidden/32] fp32 if ``dtype`` is e4m3; dy[tokens, hidden] of ``dtype_grad``; weights[tokens] fp32 if
    ``weights``; scaling, an fp32 scalar, if ``scaling``; expert_ends[experts] int32 if ``experts``;
    dx[tokens, 2*hidden] of ``dtype_out``; with a ``cast`` dx_cast, the same quantised, and dx_cast_scales,
    one per 32 values; dweights[tokens] fp32 if ``weights``; y[tokens, hidden] of ``dtype_out``, the forward
    result, if ``recompute``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(64, 32768, multiple_of=16)]
    dtype: Literal["bf16", "fp32", "e4m3"] = "bf16"
    dtype_grad: FloatDtype = "bf16"
    dtype_out: FloatDtype = "bf16"
    weights: bool = False
    scaling: bool = False
    clamp: Clamp = None
    recompute: bool = False
    experts: Experts = 0
    token_alignment: TokenAlignment = DEFAULT_ALIGNMENT
    cast: Cast = "none"
    round_sf: bool = False
    scale_dtype: ScaleDtype = "fp32"
    col_major: bool = False
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 64, 32768, multiple_of=16)
        require_one_of(self.dtype, "dtype", ("bf16", "fp32", "e4m3"))
        require_one_of(self.dtype_grad, "dtype_grad", ("bf16", "fp32"))
        require_one_of(self.dtype_out, "dtype_out", ("bf16", "fp32"))
        for name in ("weights", "scaling", "recompute"):
            require_bool(getattr(self, name), name)
        require_clamp(self.clamp)
        require_weights_for_scaling(self.weights, self.scaling)
        require_expert_rows(self.experts, self.token_alignment)
        require_cast(self)
        require_dim(self.tokens, "tokens")
        step = VECTOR_LANES if self.cast != "none" else BLOCK if self.dtype == "e4m3" else 16
        if self.hidden % step:
            raise InvalidSpec(
                f"hidden is {self.hidden}; legal with dtype {self.dtype} and cast {self.cast}: "
                f"a multiple of {step}",
                field="hidden",
                legal=f"a multiple of {step}",
            )

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: SwigluBackwardSpec, target: Target) -> RowPlan:
    """The row plan: a stage holds gate, up, dy and what is written, two in one place where dtypes agree.

    With a cast the fp32 gradients lie in UB once, for the vector pipe alone.
    """
    need = _row_bytes(spec)
    return plan_rows(
        target,
        row_bytes=need.staged,
        fixed_bytes=need.fixed,
        unstaged_row_bytes=need.unstaged,
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        passes=6.0,
        what=f"a row of {spec.hidden} {spec.dtype} gates and as many ups, with their gradients",
        row_counts=row_counts_within(spec.token_alignment) if spec.experts else ROW_COUNTS,
    )


def _row_bytes(spec: SwigluBackwardSpec) -> RowBytes:
    column = 2 * DTYPE_BYTES[spec.dtype] + DTYPE_BYTES[spec.dtype_grad]
    if spec.dtype_out != spec.dtype:
        column += 2 * DTYPE_BYTES[spec.dtype_out]
    if spec.recompute and spec.dtype_out != spec.dtype_grad:
        column += DTYPE_BYTES[spec.dtype_out]
    staged = padded(spec.hidden) * column + 8 * spec.weights
    # Weights and their gradients start at a multiple of 32 bytes in each stage.
    fixed = 256 * spec.weights + ends_bytes(spec.experts)
    if spec.dtype == "e4m3":
        staged += 4 * _scale_pitch(spec)
    if spec.cast == "none":
        return RowBytes(staged, 0, fixed)
    quantiser = quantiser_of(spec, 2 * spec.hidden, "fp32")
    return RowBytes(staged + quantiser.row_bytes, 4 * quantiser.pitch, fixed + quantiser.fixed_bytes())


def _scale_pitch(spec: SwigluBackwardSpec) -> int:
    """Scales of a row of x in UB; the last 64 values of either half may look at one scale too many."""
    return padded(2 * spec.hidden // BLOCK + 1, 8)


def build(spec: SwigluBackwardSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores and UB size.

    Raises :class:`DoesNotFit` if a row does not fit UB.
    """
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: SwigluBackwardSpec) -> tuple[Parameter, ...]:
    """What a call takes; see :class:`SwigluBackwardSpec`."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    both, half = (tokens, 2 * spec.hidden), (tokens, spec.hidden)
    taken = [Parameter(name="x", role="in", dtype=spec.dtype, shape=both)]
    if spec.dtype == "e4m3":
        blocks = (tokens, 2 * spec.hidden // BLOCK)
        taken.append(Parameter(name="x_scales", role="in", dtype="fp32", shape=blocks))
    taken.append(Parameter(name="dy", role="in", dtype=spec.dtype_grad, shape=half))
    if spec.weights:
        taken.append(Parameter(name="weights", role="in", dtype="fp32", shape=(tokens,)))
    if spec.scaling:
        taken.append(Parameter(name="scaling", role="scalar", dtype="fp32"))
    if spec.experts:
        taken.append(Parameter(name="expert_ends", role="in", dtype="int32", shape=(spec.experts,)))
    taken.append(Parameter(name="dx", role="out", dtype=spec.dtype_out, shape=both))
    if spec.cast != "none":
        taken.extend(cast_parameters(spec, "dx_cast", tokens, 2 * spec.hidden))
    if spec.weights:
        taken.append(Parameter(name="dweights", role="out", dtype="fp32", shape=(tokens,)))
    if spec.recompute:
        taken.append(Parameter(name="y", role="out", dtype=spec.dtype_out, shape=half))
    return tuple(taken)


class _State(msgspec.Struct, frozen=True):
    """The call and the UB of a block: inputs and results by stage; the rest once.

    ``values`` are the gradients before a cast, which ``work`` is for; ``cursor`` is the expert at hand and
    ``valid`` the rows of the stage being loaded that are no padding.
    """

    call: Any
    gate: Any
    up: Any
    x_scales: Any
    dy: Any
    dgate: Any
    dup: Any
    y: Any
    weights: Any
    dweights: Any
    values: Any
    work: Any
    ends: Any
    cursor: Any
    valid: Any


def _program(spec: SwigluBackwardSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: rows through the ring, padding filled with zeros."""
    import tilelang.ascend.language as T

    entry = Entry("swiglu_backward", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    hidden = spec.hidden
    casts = spec.cast != "none"
    quantiser = quantiser_of(spec, 2 * hidden, "fp32") if casts else None
    quantise: Any = quantiser.rows() if quantiser else None
    store_cast: Any = quantiser.store() if quantiser else None
    gradient_row, zero_row = _gradient_row(spec), _zero_row(spec)
    count_of = valid_rows(spec.experts, spec.token_alignment)

    @T.macro
    def load_rows(state: Any, slot: Any, first: Any, count: Any) -> None:
        call = state.call
        T.copy(call.x[first : first + count, 0:hidden], state.gate[slot, 0:count, 0:hidden])
        T.copy(call.x[first : first + count, hidden : 2 * hidden], state.up[slot, 0:count, 0:hidden])
        T.copy(call.dy[first : first + count, 0:hidden], state.dy[slot, 0:count, 0:hidden])
        if spec.dtype == "e4m3":
            blocks = 2 * hidden // BLOCK
            T.copy(call.x_scales[first : first + count, 0:blocks], state.x_scales[slot, 0:count, 0:blocks])
        if spec.weights:
            T.copy(call.weights[first : first + count], state.weights[slot, 0:count])

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        if spec.experts:
            state.valid[0] = count_of(state.ends, state.cursor, first, count)
            load_rows(state, slot, first, state.valid[0])
        else:
            load_rows(state, slot, first, count)

    @T.macro
    def compute_rows(state: Any, slot: Any, valid: Any, count: Any) -> None:
        with T.SimdVF():
            for row in T.serial(T.cast(valid, "uint16")):
                gradient_row(state, slot, T.cast(row, "int32"))
            if spec.experts:
                for row in T.serial(T.cast(count - valid, "uint16")):
                    zero_row(state, slot, valid + T.cast(row, "int32"))
            if casts:
                T.simd.mem_bar("VST_VLD")
                quantise(state.values, state.work, slot, count)

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        if spec.experts:
            compute_rows(state, slot, state.valid[0], count)
        else:
            compute_rows(state, slot, count, count)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call = state.call
        T.copy(state.dgate[slot, 0:count, 0:hidden], call.dx[first : first + count, 0:hidden])
        T.copy(state.dup[slot, 0:count, 0:hidden], call.dx[first : first + count, hidden : 2 * hidden])
        if casts:
            store_cast(state.work, slot, first, count, call.dx_cast, call.dx_cast_scales)
        if spec.weights:
            T.copy(state.dweights[slot, 0:count], call.dweights[first : first + count])
        if spec.recompute:
            T.copy(state.y[slot, 0:count, 0:hidden], call.y[first : first + count, 0:hidden])

    @T.macro
    def load_ends(state: Any) -> None:
        T.copy(state.call.expert_ends[0 : spec.experts], state.ends[0 : spec.experts])
        T.ascend_set_flag("MTE2_S", 0)
        T.ascend_wait_flag("MTE2_S", 0)

    run = row_pipeline(
        plan,
        cores,
        tokens,
        load=load,
        compute=compute,
        store=store,
        prepare=load_ends if spec.experts else None,
        power_of_two=spec.experts > 0,
    )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            state = _allocate(spec, plan, call)
            if spec.experts:
                state.cursor[0] = 0
            run(state, core)

    return entry.prim_func(block)


def _allocate(spec: SwigluBackwardSpec, plan: RowPlan, call: Any) -> _State:
    """UB of a block; what is written takes the place of what was read in the same dtype."""
    import tilelang.ascend.language as T

    def rows(dtype: str) -> Any:
        return T.alloc_shared((plan.stages, plan.rows, padded(spec.hidden)), TILELANG_DTYPE[dtype])

    def per_row() -> Any:
        return T.alloc_shared((plan.stages, padded(plan.rows, 8)), "float32")

    gate, up, dy = rows(spec.dtype), rows(spec.dtype), rows(spec.dtype_grad)
    in_place = spec.dtype_out == spec.dtype
    y = None
    if spec.recompute:
        y = dy if spec.dtype_out == spec.dtype_grad else rows(spec.dtype_out)
    values = work = None
    if spec.cast != "none":
        quantiser = quantiser_of(spec, 2 * spec.hidden, "fp32")
        values = SingleStage(T.alloc_shared((plan.rows, quantiser.pitch), "float32"))
        work = quantiser.allocate(plan.stages, plan.rows)
    quantised_input = spec.dtype == "e4m3"
    scales = (plan.stages, plan.rows, _scale_pitch(spec))
    return _State(
        call=call,
        gate=gate,
        up=up,
        x_scales=T.alloc_shared(scales, "float32") if quantised_input else None,
        dy=dy,
        dgate=gate if in_place else rows(spec.dtype_out),
        dup=up if in_place else rows(spec.dtype_out),
        y=y,
        weights=per_row() if spec.weights else None,
        dweights=per_row() if spec.weights else None,
        values=values,
        work=work,
        ends=T.alloc_shared((padded(spec.experts, 8),), "int32") if spec.experts else None,
        cursor=T.alloc_local((1,), "int32") if spec.experts else None,
        valid=T.alloc_local((1,), "int32") if spec.experts else None,
    )


def _gradient_row(spec: SwigluBackwardSpec) -> Any:
    """A macro ``(state, slot, row)``: the gradients of one row."""
    import tilelang.ascend.language as T

    hidden = spec.hidden
    vectors = padded(hidden) // VECTOR_LANES
    unroll = unroll_of(vectors)
    bound = 0.0 if spec.clamp is None else spec.clamp

    @T.macro
    def input_values(state: Any, buffer: Any, first_block: int, slot: Any, row: Any, at: Any) -> Any:
        """64 gates or ups as fp32; those of e4m3 times their two scales."""
        values = load_wide(spec.dtype, buffer, slot, row, at)
        if spec.dtype == "e4m3":
            block = first_block + T.truncdiv(at, BLOCK)
            low = T.simd.vld(state.x_scales[slot, row, block], dist="BRC_B32")
            high = T.simd.vld(state.x_scales[slot, row, block + 1], dist="BRC_B32")
            lower_half = T.simd.pset(32, "PAT_VL32")
            values = T.simd.vmul(values, T.simd.vsel(low, high, lower_half))
        return values

    @T.macro
    def store_gradient(
        state: Any, buffer: Any, column: int, value: Any, slot: Any, row: Any, at: Any
    ) -> None:
        store_wide(spec.dtype_out, buffer, value, slot, row, at)
        if spec.cast != "none":
            T.simd.vsts(state.values[slot, row, column + at], value)

    @T.macro
    def step(state: Any, sums: Any, i: Any, weight: Any, slot: Any, row: Any, at: Any) -> None:
        """64 columns; ``sums[i]`` grows by dy times the activation."""
        gate = input_values(state, state.gate, 0, slot, row, at)
        up = input_values(state, state.up, hidden // BLOCK, slot, row, at)
        dy = load_wide(spec.dtype_grad, state.dy, slot, row, at)
        zero, one = T.simd.vdup(0.0, "float32"), T.simd.vdup(1.0, "float32")
        if spec.clamp is not None:
            known = T.simd.pset(32, "PAT_ALL")
            gate_cut = T.simd.vcmps(gate, bound, known, op="gt")
            up_cut = T.simd.vcmps(T.simd.vabs(up), bound, known, op="gt")
            gate = T.simd.vmins(gate, bound)
            up = T.simd.vmaxs(T.simd.vmins(up, bound), -bound)
        denominator = sigmoid_denominator(gate)
        sigmoid = T.simd.vdiv(one, denominator)
        if spec.weights or spec.recompute:
            activation = T.simd.vmul(T.simd.vdiv(gate, denominator), up)
        if spec.weights:
            summand = T.simd.vmuls(
                T.simd.vmul(dy, activation),
                1.0,
                T.simd.update_mask(T.cast(T.min(hidden - at, VECTOR_LANES), "uint32"), 32),
            )
            sums[i] = T.simd.vadd(sums[i], summand)
            dy = T.simd.vmul(dy, weight)
        if spec.recompute:
            result = T.simd.vmul(activation, weight) if spec.weights else activation
            store_wide(spec.dtype_out, state.y, result, slot, row, at)
        through = T.simd.vmul(dy, sigmoid)
        slope = T.simd.vadds(T.simd.vmul(gate, T.simd.vsub(one, sigmoid)), 1.0)
        dgate = T.simd.vmul(T.simd.vmul(through, up), slope)
        dup = T.simd.vmul(through, gate)
        if spec.clamp is not None:
            dgate = T.simd.vsel(zero, dgate, gate_cut)
            dup = T.simd.vsel(zero, dup, up_cut)
        store_gradient(state, state.dgate, 0, dgate, slot, row, at)
        store_gradient(state, state.dup, hidden, dup, slot, row, at)

    @T.macro
    def gradient_row(state: Any, slot: Any, row: Any) -> None:
        sums = T.simd.alloc_local((unroll,), "float32")
        weight = None
        if spec.weights:
            weight = T.simd.vld(state.weights[slot, row], dist="BRC_B32")
            if spec.scaling:
                weight = T.simd.vmuls(weight, state.call.scaling)
            for i in T.unroll(unroll, explicit=True):
                sums[i] = T.simd.vdup(0.0, "float32")
        for group in T.serial(T.uint16(vectors // unroll)):
            for i in T.unroll(unroll, explicit=True):
                at = (T.cast(group, "int32") * unroll + i) * VECTOR_LANES
                step(state, sums, i, weight, slot, row, at)
        if spec.weights:
            for i in T.unroll(1, unroll, explicit=True):
                sums[0] = T.simd.vadd(sums[0], sums[i])
            total = T.simd.vcadd(sums[0])
            if spec.scaling:
                total = T.simd.vmuls(total, state.call.scaling)
            T.simd.vsts(state.dweights[slot, row], total, dist="ONEPT_B32")

    return gradient_row


def _zero_row(spec: SwigluBackwardSpec) -> Any:
    """A macro ``(state, slot, row)``: zeros for a row of padding."""
    import tilelang.ascend.language as T

    hidden = spec.hidden

    @T.macro
    def zero_row(state: Any, slot: Any, row: Any) -> None:
        zero = T.simd.vdup(0.0, "float32")
        for vector in T.serial(T.uint16(padded(hidden) // VECTOR_LANES)):
            at = T.cast(vector, "int32") * VECTOR_LANES
            store_wide(spec.dtype_out, state.dgate, zero, slot, row, at)
            store_wide(spec.dtype_out, state.dup, zero, slot, row, at)
            if spec.recompute:
                store_wide(spec.dtype_out, state.y, zero, slot, row, at)
            if spec.cast != "none":
                T.simd.vsts(state.values[slot, row, at], zero)
                T.simd.vsts(state.values[slot, row, hidden + at], zero)
        if spec.weights:
            T.simd.vsts(state.dweights[slot, row], zero, dist="ONEPT_B32")

    return zero_row


PAGE = KernelPage(
    computes="""
With gate and up as swiglu uses them (after the clamp), `s = 1 / (1 + exp(-gate))`, and w the row's
weight times the scaling (1 without weights):

`dgate = dy * w * s * up * (1 + gate * (1 - s))`, `dup = dy * w * s * gate`; dx holds dgate left and dup
right. Where the clamp cut off a gate or an up, its gradient is zero.

`dweights = scaling * sum over the row of dy * gate * s * up`. y, if `recompute`, is what swiglu
returns.

*Expert rows.* The layout is swiglu's. Here rows of padding are written: zeros in every output, whatever
the inputs hold there, and in a cast zeros with the scale of a block of zeros.

*Input.* x may be e4m3 with fp32 scales, one per 32 values, row-major: its values are multiplied by them
first.

*Cast.* With `cast` the fp32 gradient is quantised in blocks of 32, by the rule of the cast family with
the same `round_sf`, `scale_dtype` and `col_major`; dx is written beside it. Upstream offers this for
e4m3 input only.

*NaN and infinity.* They propagate as in the formulas: NaN in gate, up or dy is NaN in dgate and, where
it enters, in dup and dweights. What the clamp cut off (an infinity, for example) has gradient zero.
""",
    arguments={
        "x": "gates, then ups, of each row",
        "x_scales": "one fp32 scale per 32 values of x",
        "dy": "gradient of the forward result",
        "weights": "one factor per row, the token's routing weight",
        "scaling": "multiplies the weights and their gradients",
        "expert_ends": "one past the last row of each expert, ascending; upstream psum_num_tokens_per_expert",
        "dx": "gradient of x",
        "dx_cast": "dx quantised, fp4 as pairs with the even one in the low nibble",
        "dx_cast_scales": "one scale per 32 values: fp32, or pairs of e8m0 with the first in the low byte; "
        "[blocks, tokens] if `col_major`",
        "dweights": "gradient of the weights",
        "y": "the forward result, recomputed",
    },
    tolerance="dx: one rounding to `dtype_out`, and 2^-20 of the largest `|dy w s| (1 + |gate|) (1 + |up|)`; "
    "dweights: 2^-20 of the largest sum of magnitudes of a row; y as for swiglu. A cast equals, to the bit, "
    "the quantisation of the fp32 dx that the same spec without the cast gives",
    facts=(
        "TileKernels 2.0.0, tile_kernels/quant/swiglu_backward_kernel.py and tile_kernels/torch/swiglu.py: "
        "formulas, clamp, padding, order of outputs",
    ),
    serves=("tile_kernels.quant.swiglu_backward", "tile_kernels.quant.swiglu_backward_and_per_token_cast"),
    examples=(
        SwigluBackwardSpec(hidden=2048, weights=True, experts=32, clamp=10.0),
        SwigluBackwardSpec(
            hidden=2048, dtype="e4m3", weights=True, experts=32, cast="e4m3", round_sf=True, recompute=True
        ),
    ),
)

FAMILY = Family(
    name="swiglu_backward",
    summary="gradients of swiglu with respect to its rows and their weights, optional cast",
    spec_type=SwigluBackwardSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    page=PAGE,
    sources=(
        *ROW_KERNEL_SOURCES,
        *CAST_OUTPUT_SOURCES,
        EXPERT_ROW_SOURCE,
        GATED_ACTIVATION_SOURCE,
        WIDE_VALUE_SOURCE,
    ),
)
