"""rmsnorm: y = x * rsqrt(mean(x^2) + eps) (* weight), optionally after adding a residual."""

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
    Epsilon,
    KernelSpec,
    require_bool,
    require_dim,
    require_epsilon,
    require_float,
    require_int,
    require_one_of,
    within,
)
from kaas.kernel_library.vector.cast_output import (
    CAST_OUTPUT_SOURCES,
    Cast,
    ScaleDtype,
    cast_parameters,
    quantiser_of,
    require_cast,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowBytes, RowPlan, padded, plan_rows
from kaas.kernel_library.vector.wide_values import (
    TILELANG_DTYPE,
    WIDE_VALUE_SOURCE,
    load_wide,
    rounded,
    store_rounded,
    store_wide,
    unroll_of,
    widened,
)
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_OUT_SCALE = 65536.0


class RmsNormSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="rmsnorm"):
    """Root-mean-square normalisation of rows on the vector cores, fp32 inside.

    Arguments in call order: x[tokens, hidden]; residual[tokens, hidden] if ``residual`` (updated in place to
    x + residual, which is what gets normalised); weight[hidden] if ``weight``; y[tokens, hidden]. All of
    these have ``dtype``; ``eps`` and ``out_scale``, a factor of y, are compiled in. With a residual the sum
    is rounded to ``dtype`` first, so that what is normalised is what is written.

    With a ``cast``, y is quantised as it was rounded to ``dtype``, and y_scales follow it, one per 32 values;
    y_bf16[tokens, hidden] comes next if ``bf16_output``. Last comes rstd[tokens] fp32 if ``rstd``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(64, 32768, multiple_of=16)]
    dtype: Dtype = "bf16"
    residual: bool = False
    weight: bool = True
    eps: Epsilon = 1e-6
    out_scale: Annotated[float, within(-MAX_OUT_SCALE, MAX_OUT_SCALE)] = 1.0
    rstd: bool = False
    cast: Cast = "none"
    round_sf: bool = False
    scale_dtype: ScaleDtype = "fp32"
    col_major: bool = False
    bf16_output: bool = False
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 64, 32768, multiple_of=16)
        require_one_of(self.dtype, "dtype", ("bf16", "fp16", "fp32"))
        require_bool(self.residual, "residual")
        require_bool(self.weight, "weight")
        require_epsilon(self.eps, "eps")
        require_float(self.out_scale, "out_scale", -MAX_OUT_SCALE, MAX_OUT_SCALE)
        require_bool(self.rstd, "rstd")
        require_cast(self)
        require_bool(self.bf16_output, "bf16_output")
        require_dim(self.tokens, "tokens")
        if self.cast == "none" and self.bf16_output:
            raise InvalidSpec(
                "bf16_output is a second y beside a cast one, and cast is none",
                field="bf16_output",
                legal=[False],
            )
        if self.cast != "none" and self.dtype == "fp16":
            raise InvalidSpec(
                "dtype is fp16; legal with a cast: bf16, fp32", field="dtype", legal=["bf16", "fp32"]
            )

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: RmsNormSpec, target: Target) -> RowPlan:
    """The row plan; raises :class:`DoesNotFit` if not even one row fits.

    A stage holds x, which y replaces, and the residual, which the sum replaces; the weight stays in UB. With
    a cast come the quantised values, and bf16 ones if they are wanted beside another dtype.
    """
    need = _row_bytes(spec)
    return plan_rows(
        target,
        row_bytes=need.staged,
        fixed_bytes=need.fixed,
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        passes=2.0 if spec.cast == "none" else 4.0,
        what=f"a row of {spec.hidden} {spec.dtype}",
    )


def _row_bytes(spec: RmsNormSpec) -> RowBytes:
    array = _pitch(spec) * DTYPE_BYTES[spec.dtype]
    staged, fixed = array * (2 if spec.residual else 1), array * (1 if spec.weight else 0)
    if spec.rstd:
        staged += 4
        fixed += 128  # each stage's start at a multiple of 32 bytes
    if spec.cast != "none":
        quantiser = quantiser_of(spec, spec.hidden, _source(spec))
        staged += quantiser.row_bytes
        fixed += quantiser.fixed_bytes()
    if _has_own_bf16(spec):
        staged += 2 * _pitch(spec)
    return RowBytes(staged, 0, fixed)


def _pitch(spec: RmsNormSpec) -> int:
    """Elements from row to row in UB."""
    if spec.cast == "none":
        return padded(spec.hidden)
    return quantiser_of(spec, spec.hidden, _source(spec)).pitch


def _source(spec: RmsNormSpec) -> Any:
    """What a cast starts from."""
    return spec.dtype


def _has_own_bf16(spec: RmsNormSpec) -> bool:
    """Whether y in bf16 is something else than y as it was rounded to ``dtype``."""
    return spec.bf16_output and spec.dtype != "bf16"


def build(spec: RmsNormSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores and UB size.

    Raises :class:`DoesNotFit` if a row does not fit UB.
    """
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: RmsNormSpec) -> tuple[Parameter, ...]:
    """What a call takes; see :class:`RmsNormSpec`."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    rows = (tokens, spec.hidden)
    taken = [Parameter(name="x", role="in", dtype=spec.dtype, shape=rows)]
    if spec.residual:
        taken.append(Parameter(name="residual", role="inout", dtype=spec.dtype, shape=rows))
    if spec.weight:
        taken.append(Parameter(name="weight", role="in", dtype=spec.dtype, shape=(spec.hidden,)))
    if spec.cast == "none":
        taken.append(Parameter(name="y", role="out", dtype=spec.dtype, shape=rows))
    else:
        taken.extend(cast_parameters(spec, "y", tokens, spec.hidden))
    if spec.bf16_output:
        taken.append(Parameter(name="y_bf16", role="out", dtype="bf16", shape=rows))
    if spec.rstd:
        taken.append(Parameter(name="rstd", role="out", dtype="fp32", shape=(tokens,)))
    return tuple(taken)


class _State(msgspec.Struct, frozen=True):
    """The call and the UB of a block: everything by stage but the weight."""

    call: Any
    x: Any
    residual: Any
    weight: Any
    work: Any
    bf16: Any
    rstd: Any


def _program(spec: RmsNormSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: one macro per task, joined in ``block``."""
    import tilelang.ascend.language as T

    dtype = spec.dtype
    entry = Entry("rmsnorm", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    hidden, pitch = spec.hidden, _pitch(spec)
    vectors = padded(hidden) // VECTOR_LANES
    full_vectors, tail = divmod(hidden, VECTOR_LANES)
    sums = unroll_of(full_vectors)
    casts = spec.cast != "none"
    quantiser = quantiser_of(spec, hidden, _source(spec)) if casts else None
    quantise: Any = quantiser.rows() if quantiser else None
    store_cast: Any = quantiser.store() if quantiser else None

    @T.macro
    def summand(state: Any, slot: Any, row: Any, at: Any) -> Any:
        """The values to normalise, as fp32; with a residual, the sum as it is written."""
        value = load_wide(dtype, state.x, slot, row, at)
        if spec.residual:
            total = rounded(dtype, T.simd.vadd(value, load_wide(dtype, state.residual, slot, row, at)))
            store_rounded(dtype, state.residual, total, slot, row, at)
            value = widened(dtype, total)
        return value

    @T.macro
    def inverse_rms(state: Any, slot: Any, row: Any) -> Any:
        """1 / sqrt(mean of squares + eps) of one row, in every lane."""
        partial = T.simd.alloc_local((sums,), "float32")
        for i in T.unroll(sums, explicit=True):
            partial[i] = T.simd.vdup(0.0, "float32")
        for group in T.serial(T.uint16(full_vectors // sums)):
            for i in T.unroll(sums, explicit=True):
                at = (T.cast(group, "int32") * sums + i) * VECTOR_LANES
                value = summand(state, slot, row, at)
                T.simd.vmula(partial[i], value, value)
        if tail:
            # The lanes behind the row hold anything, NaN included: multiplying under the mask zeroes them.
            last = T.simd.vmuls(
                summand(state, slot, row, full_vectors * VECTOR_LANES),
                1.0,
                T.simd.update_mask(T.uint32(tail), 32),
            )
            T.simd.vmula(partial[0], last, last)
        for i in T.unroll(1, sums, explicit=True):
            partial[0] = T.simd.vadd(partial[0], partial[i])
        mean = T.simd.vmuls(T.simd.vdupv(T.simd.vcadd(partial[0])), 1.0 / hidden)
        return T.simd.vdiv(T.simd.vdup(1.0, "float32"), T.simd.vsqrt(T.simd.vadds(mean, spec.eps)))

    @T.macro
    def scaled(state: Any, value: Any, at: Any) -> Any:
        """``value`` times weight and ``out_scale``."""
        if spec.weight:
            weight = load_wide(dtype, state.weight, at)
            if spec.out_scale != 1.0:
                weight = T.simd.vmuls(weight, spec.out_scale)
            value = T.simd.vmul(value, weight)
        elif spec.out_scale != 1.0:
            value = T.simd.vmuls(value, spec.out_scale)
        return value

    @T.macro
    def normalise_row(state: Any, slot: Any, row: Any) -> None:
        scale = inverse_rms(state, slot, row)
        if spec.rstd:
            T.simd.vsts(state.rstd[slot, row], scale, dist="ONEPT_B32")
        if spec.residual:
            T.simd.mem_bar("VST_VLD")
        for vector in T.serial(T.uint16(vectors)):
            at = T.cast(vector, "int32") * VECTOR_LANES
            source = state.residual if spec.residual else state.x
            value = T.simd.vmul(load_wide(dtype, source, slot, row, at), scale)
            value = scaled(state, value, at)
            store_wide(dtype, state.x, value, slot, row, at)
            if _has_own_bf16(spec):
                store_wide("bf16", state.bf16, value, slot, row, at)

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call = state.call
        T.copy(call.x[first : first + count, 0:hidden], state.x[slot, 0:count, 0:hidden])
        if spec.residual:
            T.copy(call.residual[first : first + count, 0:hidden], state.residual[slot, 0:count, 0:hidden])

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        with T.SimdVF():
            for row in T.serial(T.cast(count, "uint16")):
                normalise_row(state, slot, T.cast(row, "int32"))
            if casts:
                T.simd.mem_bar("VST_VLD")
                quantise(state.x, state.work, slot, count)

    @T.macro
    def store_rows(state: Any, slot: Any, first: Any, count: Any) -> None:
        call = state.call
        if casts:
            store_cast(state.work, slot, first, count, call.y, call.y_scales)
        else:
            T.copy(state.x[slot, 0:count, 0:hidden], call.y[first : first + count, 0:hidden])
        if spec.bf16_output:
            T.copy(state.bf16[slot, 0:count, 0:hidden], call.y_bf16[first : first + count, 0:hidden])
        if spec.residual:
            T.copy(state.residual[slot, 0:count, 0:hidden], call.residual[first : first + count, 0:hidden])
        if spec.rstd:
            T.copy(state.rstd[slot, 0:count], call.rstd[first : first + count])

    @T.macro
    def load_weight(state: Any) -> None:
        T.copy(state.call.weight[0:hidden], state.weight[0:hidden])

    run = row_pipeline(
        plan,
        cores,
        tokens,
        load=load,
        compute=compute,
        store=store_rows,
        prepare=load_weight if spec.weight else None,
    )

    def allocate(call: Any) -> _State:
        stage, element = (plan.stages, plan.rows, pitch), TILELANG_DTYPE[dtype]
        x = T.alloc_shared(stage, element)
        return _State(
            call=call,
            x=x,
            residual=T.alloc_shared(stage, element) if spec.residual else None,
            weight=T.alloc_shared((pitch,), element) if spec.weight else None,
            work=quantiser.allocate(plan.stages, plan.rows) if quantiser else None,
            bf16=T.alloc_shared(stage, "bfloat16") if _has_own_bf16(spec) else x,
            rstd=T.alloc_shared((plan.stages, padded(plan.rows, 8)), "float32") if spec.rstd else None,
        )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            run(allocate(call), core)

    return entry.prim_func(block)


PAGE = KernelPage(
    computes="""
`y = x * rstd * weight * out_scale` for each row of x, with `rstd = 1 / sqrt(mean(x^2) + eps)`; without
a weight or with `out_scale` 1 that factor is left out. The arithmetic is fp32, y is rounded once.

*Residual.* With `residual`, x + residual is computed in fp32, rounded to `dtype` and written back to
`residual`; this rounded sum takes x's place in everything above. x itself is not changed.

*Cast.* With `cast`, y is rounded to `dtype` first and then quantised in blocks of 32, so that the
outputs equal the cast family (with the same `round_sf`, `scale_dtype` and `col_major`) of the y that
the same spec without a cast gives. `bf16_output` gives y beside it, rounded to bf16 from fp32.

*NaN and infinity.* A NaN in a row makes the whole row NaN; an infinity makes itself NaN and the rest of
the row zero. Other rows are not touched. A block with a NaN dequantises to NaN.
""",
    arguments={
        "x": "the rows to normalise",
        "residual": "added to x; receives the sum",
        "weight": "one factor per column",
        "y": "the result; with a cast the quantised values, fp4 as pairs with the even one in the low nibble",
        "y_scales": "one scale per 32 values: fp32, or pairs of e8m0 with the first in the low byte; "
        "[blocks, tokens] if `col_major`",
        "y_bf16": "the result before the cast",
        "rstd": "one reciprocal root mean square per row, for the backward pass",
    },
    tolerance="one rounding to `dtype` after fp32 arithmetic within 2^-20 of the value; rstd within 2^-20; "
    "the residual's sum exactly. A cast equals, to the bit, the quantisation of the y that the same spec "
    "without the cast gives",
    facts=(
        "TileKernels 2.0.0, tile_kernels/quant/norm_forward_kernel.py and tile_kernels/torch/norm.py: "
        "rounding of the sum, y rounded before the cast, out_scale, rstd",
    ),
    serves=("tile_kernels.quant.norm_forward", "tile_kernels.quant.norm_forward_and_per_token_cast"),
    examples=(
        RmsNormSpec(hidden=7168),
        RmsNormSpec(hidden=7168, residual=True, rstd=True, cast="e4m3", round_sf=True, bf16_output=True),
    ),
)

FAMILY = Family(
    name="rmsnorm",
    summary="root-mean-square normalisation of rows, optional residual, weight and cast",
    spec_type=RmsNormSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    page=PAGE,
    sources=(*ROW_KERNEL_SOURCES, *CAST_OUTPUT_SOURCES, WIDE_VALUE_SOURCE),
)
