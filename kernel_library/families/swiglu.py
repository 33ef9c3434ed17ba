"""swiglu: silu(gate) * up, the two halves of a row, for the tokens of a mixture of experts."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

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
    silu,
)
from kaas.kernel_library.vector.quantise import Work
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

COUNTS = 4


class SwigluSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="swiglu"):
    """SwiGLU forward on the vector cores, fp32 inside.

    Arguments in call order: x[tokens, 2*hidden] of ``dtype``, gate left and up right; weights[tokens] fp32 if
    ``weights``; scaling, an fp32 scalar, if ``scaling``; expert_ends[experts] int32 if ``experts``;
    y[tokens, hidden] of ``dtype_out``, or with a ``cast`` its quantised values and y_scales, one per 32
    values; clamped[4] int64, added to, if ``count_clamped``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(64, 32768, multiple_of=16)]
    dtype: FloatDtype = "bf16"
    dtype_out: FloatDtype = "bf16"
    weights: bool = False
    scaling: bool = False
    clamp: Clamp = None
    count_clamped: bool = False
    experts: Experts = 0
    token_alignment: TokenAlignment = DEFAULT_ALIGNMENT
    cast: Cast = "none"
    round_sf: bool = False
    scale_dtype: ScaleDtype = "fp32"
    col_major: bool = False
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 64, 32768, multiple_of=16)
        require_one_of(self.dtype, "dtype", ("bf16", "fp32"))
        require_one_of(self.dtype_out, "dtype_out", ("bf16", "fp32"))
        for name in ("weights", "scaling", "count_clamped"):
            require_bool(getattr(self, name), name)
        require_clamp(self.clamp)
        require_expert_rows(self.experts, self.token_alignment)
        require_cast(self)
        require_dim(self.tokens, "tokens")
        require_weights_for_scaling(self.weights, self.scaling)
        if self.count_clamped and self.clamp is None:
            raise InvalidSpec(
                "count_clamped counts what clamp cuts off, and clamp is null",
                field="count_clamped",
                legal=[False],
            )

        if self.cast != "none" and self.dtype_out != "bf16":
            raise InvalidSpec(
                f"dtype_out is {self.dtype_out}, but the values leave as {self.cast}",
                field="dtype_out",
                legal=["bf16"],
            )

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: SwigluSpec, target: Target) -> RowPlan:
    """The row plan: a stage holds gate, up, the row's weight and what is written.

    y takes gate's place in the same dtype. With a cast the fp32 values lie in UB once, for the vector pipe
    alone, and a stage holds what they are quantised to.
    """
    need = _row_bytes(spec)
    return plan_rows(
        target,
        row_bytes=need.staged,
        fixed_bytes=need.fixed,
        unstaged_row_bytes=need.unstaged,
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        passes=4.0,
        what=f"a row of {spec.hidden} {spec.dtype} gates and as many ups",
        row_counts=row_counts_within(spec.token_alignment) if spec.experts else ROW_COUNTS,
    )


def _row_bytes(spec: SwigluSpec) -> RowBytes:
    pitch = padded(spec.hidden)
    staged = pitch * 2 * DTYPE_BYTES[spec.dtype] + 4 * spec.weights
    # Weights of a stage start at a multiple of 32 bytes.
    fixed = 128 * spec.weights + 4 * COUNTS * VECTOR_LANES * spec.count_clamped + ends_bytes(spec.experts)
    if spec.cast != "none":
        quantiser = quantiser_of(spec, spec.hidden, "fp32")
        return RowBytes(staged + quantiser.row_bytes, 4 * quantiser.pitch, fixed + quantiser.fixed_bytes())
    if spec.dtype_out != spec.dtype:
        staged += pitch * DTYPE_BYTES[spec.dtype_out]
    return RowBytes(staged, 0, fixed)


def build(spec: SwigluSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores and UB size.

    Raises :class:`DoesNotFit` if a row does not fit UB.
    """
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: SwigluSpec) -> tuple[Parameter, ...]:
    """What a call takes; see :class:`SwigluSpec`."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    # The counters are an output that is never empty.
    empty = spec.count_clamped
    rows = (tokens, 2 * spec.hidden)
    taken = [Parameter(name="x", role="in", dtype=spec.dtype, shape=rows, may_be_empty=empty)]
    if spec.weights:
        taken.append(Parameter(name="weights", role="in", dtype="fp32", shape=(tokens,), may_be_empty=empty))
    if spec.scaling:
        taken.append(Parameter(name="scaling", role="scalar", dtype="fp32"))
    if spec.experts:
        taken.append(Parameter(name="expert_ends", role="in", dtype="int32", shape=(spec.experts,)))
    if spec.cast == "none":
        rows = (tokens, spec.hidden)
        taken.append(Parameter(name="y", role="out", dtype=spec.dtype_out, shape=rows, may_be_empty=empty))
    else:
        taken.extend(cast_parameters(spec, "y", tokens, spec.hidden, may_be_empty=empty))
    if spec.count_clamped:
        taken.append(Parameter(name="clamped", role="inout", dtype="int64", shape=(COUNTS,)))
    return tuple(taken)


class _State(msgspec.Struct, frozen=True):
    """The call and the UB of a block: gate, up, result and weights by stage; the rest once.

    ``values`` is the result before a cast, which ``work`` is for; ``cursor`` is the expert at hand.
    """

    call: Any
    gate: Any
    up: Any
    values: Any
    weights: Any
    work: Work | None
    ends: Any
    cursor: Any
    counts: Any


def _program(spec: SwigluSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: one macro per task, joined in ``block``."""
    import tilelang.ascend.language as T

    entry = Entry("swiglu", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    hidden, pitch = spec.hidden, padded(spec.hidden)
    vectors = pitch // VECTOR_LANES
    unroll = unroll_of(vectors)
    dtype, dtype_out = spec.dtype, spec.dtype_out
    casts, counts_clamped = spec.cast != "none", spec.count_clamped
    quantiser = quantiser_of(spec, hidden, "fp32") if casts else None
    quantise: Any = quantiser.rows() if quantiser else None
    store_cast: Any = quantiser.store() if quantiser else None
    bound = 0.0 if spec.clamp is None else spec.clamp

    @T.macro
    def row_weight(state: Any, slot: Any, row: Any) -> Any:
        """The row's weight times the scaling, in every lane."""
        weight = T.simd.vld(state.weights[slot, row], dist="BRC_B32")
        if spec.scaling:
            weight = T.simd.vmuls(weight, state.call.scaling)
        return weight

    @T.macro
    def value_of(gate: Any, up: Any) -> Any:
        if spec.clamp is not None:
            gate = T.simd.vmins(gate, bound)
            up = T.simd.vmaxs(T.simd.vmins(up, bound), -bound)
        return T.simd.vmul(silu(gate), up)

    @T.macro
    def count_cut_off(counts: Any, gate: Any, up: Any, at: Any) -> None:
        """Add 1 in every lane that the clamp will change: gate above, up above, up below."""
        known = T.simd.update_mask(T.cast(T.min(hidden - at, VECTOR_LANES), "uint32"), 32)
        zero, one = T.simd.vdup(T.int32(0), "int32"), T.simd.vdup(T.int32(1), "int32")
        gate_above = T.simd.vcmps(gate, bound, known, op="gt")
        counts[0] = T.simd.vadd(counts[0], T.simd.vsel(one, zero, gate_above))
        up_above = T.simd.vcmps(up, bound, known, op="gt")
        counts[1] = T.simd.vadd(counts[1], T.simd.vsel(one, zero, up_above))
        up_below = T.simd.vcmps(up, -bound, known, op="lt")
        counts[2] = T.simd.vadd(counts[2], T.simd.vsel(one, zero, up_below))

    @T.macro
    def activate_row(state: Any, counts: Any, slot: Any, row: Any) -> None:
        if spec.weights:
            weight = row_weight(state, slot, row)
        for group in T.serial(T.uint16(vectors // unroll)):
            for i in T.unroll(unroll, explicit=True):
                at = (T.cast(group, "int32") * unroll + i) * VECTOR_LANES
                gate = load_wide(dtype, state.gate, slot, row, at)
                up = load_wide(dtype, state.up, slot, row, at)
                if counts_clamped:
                    count_cut_off(counts, gate, up, at)
                value = value_of(gate, up)
                if spec.weights:
                    value = T.simd.vmul(value, weight)
                store_wide("fp32" if casts else dtype_out, state.values, value, slot, row, at)

    @T.macro
    def load_counts(counts_ub: Any) -> Any:
        counts = T.simd.alloc_local((COUNTS - 1,), "int32")
        for i in T.unroll(COUNTS - 1, explicit=True):
            counts[i] = T.simd.vld(counts_ub[i, 0])
        return counts

    @T.macro
    def store_counts(counts_ub: Any, counts: Any, count: Any) -> None:
        for i in T.unroll(COUNTS - 1, explicit=True):
            T.simd.vsts(counts_ub[i, 0], counts[i])
        seen = T.simd.vld(counts_ub[COUNTS - 1, 0])
        # Only the first lane survives the mask: the others hold zeros anyway.
        first_lane = T.simd.pset(32, "PAT_VL1")
        seen = T.simd.vadds(seen, count * hidden, first_lane)
        T.simd.vsts(counts_ub[COUNTS - 1, 0], seen)

    @T.macro
    def clear_counts(counts_ub: Any) -> None:
        with T.SimdVF():
            for i in T.unroll(COUNTS, explicit=True):
                T.simd.vsts(counts_ub[i, 0], T.simd.vdup(T.int32(0), "int32"))

    @T.macro
    def add_counts(counts_ub: Any, clamped: Any) -> None:
        """The sums over this core's lanes, added to the call's counters one by one."""
        with T.SimdVF():
            for i in T.unroll(COUNTS, explicit=True):
                T.simd.vsts(counts_ub[i, 0], T.simd.vcadd(T.simd.vld(counts_ub[i, 0])), dist="ONEPT_B32")
        with T.SimtVF(threads=1):
            for i in T.serial(COUNTS):
                T.atomic_add(clamped[i], T.cast(counts_ub[i, 0], "int64"))

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        x = state.call.x
        T.copy(x[first : first + count, 0:hidden], state.gate[slot, 0:count, 0:hidden])
        T.copy(x[first : first + count, hidden : 2 * hidden], state.up[slot, 0:count, 0:hidden])
        if spec.weights:
            T.copy(state.call.weights[first : first + count], state.weights[slot, 0:count])

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        with T.SimdVF():
            counts = load_counts(state.counts) if counts_clamped else None
            for row in T.serial(T.cast(count, "uint16")):
                activate_row(state, counts, slot, T.cast(row, "int32"))
            if counts_clamped:
                store_counts(state.counts, counts, count)
            if casts:
                T.simd.mem_bar("VST_VLD")
                quantise(state.values, state.work, slot, count)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        if casts:
            store_cast(state.work, slot, first, count, state.call.y, state.call.y_scales)
        else:
            T.copy(state.values[slot, 0:count, 0:hidden], state.call.y[first : first + count, 0:hidden])

    @T.macro
    def load_ends(state: Any) -> None:
        T.copy(state.call.expert_ends[0 : spec.experts], state.ends[0 : spec.experts])
        T.ascend_set_flag("MTE2_S", 0)
        T.ascend_wait_flag("MTE2_S", 0)

    count_of = valid_rows(spec.experts, spec.token_alignment)

    @T.macro
    def limit(state: Any, first: Any, count: Any) -> Any:
        return count_of(state.ends, state.cursor, first, count)

    run = row_pipeline(
        plan,
        cores,
        tokens,
        load=load,
        compute=compute,
        store=store,
        prepare=load_ends if spec.experts else None,
        limit=limit if spec.experts else None,
        power_of_two=spec.experts > 0,
    )

    def allocate(call: Any) -> _State:
        stage = (plan.stages, plan.rows, pitch)
        gate = T.alloc_shared(stage, TILELANG_DTYPE[dtype])
        up = T.alloc_shared(stage, TILELANG_DTYPE[dtype])
        values = gate
        if quantiser:
            values = SingleStage(T.alloc_shared((plan.rows, quantiser.pitch), "float32"))
        elif dtype_out != dtype:
            values = T.alloc_shared(stage, TILELANG_DTYPE[dtype_out])
        return _State(
            call=call,
            gate=gate,
            up=up,
            values=values,
            weights=T.alloc_shared((plan.stages, padded(plan.rows, 8)), "float32") if spec.weights else None,
            work=quantiser.allocate(plan.stages, plan.rows) if quantiser else None,
            ends=T.alloc_shared((padded(spec.experts, 8),), "int32") if spec.experts else None,
            cursor=T.alloc_local((1,), "int32") if spec.experts else None,
            counts=T.alloc_shared((COUNTS, VECTOR_LANES), "int32") if counts_clamped else None,
        )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            state = allocate(call)
            if spec.experts:
                state.cursor[0] = 0
            if counts_clamped:
                clear_counts(state.counts)
            run(state, core)
            if counts_clamped:
                add_counts(state.counts, call.clamped)

    return entry.prim_func(block)


PAGE = KernelPage(
    computes="""
`y = silu(gate) * up`, with `silu(g) = g / (1 + exp(-g))`, times the row's weight (and the scaling) if
asked for. `gate` is the left half of a row of x and `up` the right one. With `clamp` = c the gate is
cut off above c and up to -c..c before anything else.

*Expert rows.* With `experts`, rows lie expert by expert: those of expert e are
`align(expert_ends[e-1])` to `expert_ends[e]`, where `align` rounds up to `token_alignment`. Rows in
between, and behind the last expert, are padding: they are neither read nor written.

*Counting.* `count_clamped` adds four numbers to `clamped`: gates above c, ups above c, ups below -c,
and values looked at (rows that are no padding times `hidden`). NaN is none of the first three.

*Cast.* With `cast` the fp32 result is not rounded to bf16 first: it is quantised in blocks of 32, by
the rule of the cast family with the same `round_sf`, `scale_dtype` and `col_major`. Blocks of 128 are
not offered; the Ascend kernels upstream have none either.

*NaN and infinity.* A NaN in gate or up is a NaN in y, clamped or not. A gate of minus infinity gives
NaN, as the quotient does; gates below about -88 give a zero, because the exponential overflows.
Overflow gives infinity. A block with a NaN or an infinity dequantises to NaN.
""",
    arguments={
        "x": "gates, then ups, of each row",
        "weights": "one factor per row, the token's routing weight",
        "scaling": "multiplies the weights (in fp32) before they are used",
        "expert_ends": "one past the last row of each expert, ascending; upstream psum_num_tokens_per_expert",
        "y": "the result; with a cast the quantised values, fp4 as pairs with the even one in the low nibble",
        "y_scales": "one scale per 32 values: fp32, or pairs of e8m0 with the first in the low byte; "
        "[blocks, tokens] if col_major",
        "clamped": "counters, added to",
    },
    tolerance="one rounding to `dtype_out` after fp32 arithmetic within 2^-20 of the value, and 2^-100 where "
    "the exponential overflows; counts exactly. A cast equals, to the bit, the quantisation of the fp32 "
    "result that the same spec without the cast gives",
    facts=(
        "TileKernels 2.0.0, tile_kernels/quant/swiglu_forward_kernel.py and tile_kernels/torch/swiglu.py: "
        "order of clamp, weight and cast, counters, expert layout",
        "TileKernels 2.0.0, tile_kernels/quant/swiglu_forward_asc.py: scale blocks of 32 only on Ascend",
    ),
    serves=("tile_kernels.quant.swiglu_forward", "tile_kernels.quant.swiglu_forward_and_per_token_cast"),
    examples=(
        SwigluSpec(hidden=2048, weights=True, experts=32, clamp=10.0),
        SwigluSpec(
            hidden=2048,
            weights=True,
            experts=32,
            cast="e4m3",
            round_sf=True,
            scale_dtype="e8m0x2",
            col_major=True,
        ),
    ),
)

FAMILY = Family(
    name="swiglu",
    summary="silu(gate) * up of expert rows, optional clamp, weights and cast",
    spec_type=SwigluSpec,
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
