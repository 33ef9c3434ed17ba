"""rmsnorm: y = x * rsqrt(mean(x^2) + eps) (* weight), optionally after adding a residual."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family
from kaas.kernel_library.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.row_plan import VECTOR_LANES, RowPlan, padded, plan_rows
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
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

TILELANG_DTYPE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
UNROLL = 4
"""Independent partial sums, so that one multiply-add need not wait for the one before."""


class RmsNormSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="rmsnorm"):
    """Root-mean-square normalisation of rows on the vector cores, fp32 inside.

    Arguments in call order: x[tokens, hidden]; residual[tokens, hidden] if ``residual`` (updated in place to
    x + residual, which is what gets normalised); weight[hidden] if ``weight``; y[tokens, hidden]. All tensors
    have ``dtype``; ``eps`` is compiled in. With a residual the sum is rounded to ``dtype`` first, so that
    what is normalised is what is written.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(64, 32768, multiple_of=16)]
    dtype: Dtype = "bf16"
    residual: bool = False
    weight: bool = True
    eps: Annotated[float, within(0.0, 1.0)] = 1e-6
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 64, 32768, multiple_of=16)
        require_one_of(self.dtype, "dtype", ("bf16", "fp16", "fp32"))
        require_bool(self.residual, "residual")
        require_bool(self.weight, "weight")
        require_float(self.eps, "eps", 0.0, 1.0)
        require_dim(self.tokens, "tokens")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: RmsNormSpec, target: Target) -> RowPlan:
    """The row plan; raises :class:`DoesNotFit` if not even one row fits.

    A stage holds x, which y replaces, and the residual, which the sum replaces; the weight stays in UB.
    """
    element_bytes = DTYPE_BYTES[spec.dtype]
    array_bytes = padded(spec.hidden) * element_bytes
    row_arrays, fixed_arrays = (2 if spec.residual else 1), (1 if spec.weight else 0)
    return plan_rows(
        target,
        row_bytes=array_bytes * row_arrays,
        fixed_bytes=array_bytes * fixed_arrays,
        column_bytes=element_bytes * (row_arrays + fixed_arrays),
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        what=f"a row of {spec.hidden} {spec.dtype}",
    )


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
    """What a call takes: x, the optional residual and weight, y."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    rows = (tokens, spec.hidden)
    taken = [Parameter(name="x", role="in", dtype=spec.dtype, shape=rows)]
    if spec.residual:
        taken.append(Parameter(name="residual", role="inout", dtype=spec.dtype, shape=rows))
    if spec.weight:
        taken.append(Parameter(name="weight", role="in", dtype=spec.dtype, shape=(spec.hidden,)))
    taken.append(Parameter(name="y", role="out", dtype=spec.dtype, shape=rows))
    return tuple(taken)


def _program(spec: RmsNormSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: one macro per task, joined in ``block``."""
    import tilelang.ascend.language as T

    dtype = TILELANG_DTYPE[spec.dtype]
    narrow = spec.dtype != "fp32"
    entry = Entry("rmsnorm", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    hidden, pitch = spec.hidden, padded(spec.hidden)
    full_vectors, tail = divmod(hidden, VECTOR_LANES)
    sums = next(count for count in (UNROLL, 2, 1) if full_vectors % count == 0)

    def load_wide(buffer: Any, *at: Any) -> Any:
        """64 elements as fp32."""
        if not narrow:
            return T.simd.vld(buffer[at])
        return T.simd.vcvt(T.simd.vld(buffer[at], dist="UNPK_B16"), "float32", part=0)

    def rounded(value: Any) -> Any:
        """fp32 to ``dtype``, not saturating: overflow becomes infinity and NaN stays NaN, as on the host."""
        return T.simd.vcvt(value, dtype, sat=False, part=0) if narrow else value

    def store(buffer: Any, value: Any, *at: Any) -> Any:
        """64 elements that :func:`rounded` made."""
        return T.simd.vsts(buffer[at], value, dist="PK_B32" if narrow else "NORM_B32")

    @T.macro
    def summand(x_ub: Any, residual_ub: Any, slot: Any, row: Any, at: Any) -> Any:
        """The values to normalise, as fp32; with a residual, the sum as it is written."""
        value = load_wide(x_ub, slot, row, at)
        if spec.residual:
            total = rounded(T.simd.vadd(value, load_wide(residual_ub, slot, row, at)))
            store(residual_ub, total, slot, row, at)
            value = T.simd.vcvt(total, "float32", part=0) if narrow else total
        return value

    @T.macro
    def inverse_rms(x_ub: Any, residual_ub: Any, slot: Any, row: Any) -> Any:
        """1 / sqrt(mean of squares + eps) of one row, in every lane."""
        partial = T.simd.alloc_local((sums,), "float32")
        for i in T.unroll(sums, explicit=True):
            partial[i] = T.simd.vdup(0.0, "float32")
        for group in T.serial(T.uint16(full_vectors // sums)):
            for i in T.unroll(sums, explicit=True):
                at = (T.cast(group, "int32") * sums + i) * VECTOR_LANES
                value = summand(x_ub, residual_ub, slot, row, at)
                T.simd.vmula(partial[i], value, value)
        if tail:
            # The lanes behind the row hold anything, NaN included: multiplying under the mask zeroes them.
            last = T.simd.vmuls(
                summand(x_ub, residual_ub, slot, row, full_vectors * VECTOR_LANES),
                1.0,
                T.simd.update_mask(T.uint32(tail), 32),
            )
            T.simd.vmula(partial[0], last, last)
        for i in T.unroll(1, sums, explicit=True):
            partial[0] = T.simd.vadd(partial[0], partial[i])
        mean = T.simd.vmuls(T.simd.vdupv(T.simd.vcadd(partial[0])), 1.0 / hidden)
        return T.simd.vdiv(T.simd.vdup(1.0, "float32"), T.simd.vsqrt(T.simd.vadds(mean, spec.eps)))

    @T.macro
    def normalise(x_ub: Any, residual_ub: Any, weight_ub: Any, slot: Any, count: Any) -> None:
        with T.SimdVF():
            for row in T.serial(T.cast(count, "uint16")):
                scale = inverse_rms(x_ub, residual_ub, slot, T.cast(row, "int32"))
                if spec.residual:
                    T.simd.mem_bar("VST_VLD")
                for vector in T.serial(T.uint16(pitch // VECTOR_LANES)):
                    at = T.cast(vector, "int32") * VECTOR_LANES
                    source = residual_ub if spec.residual else x_ub
                    value = T.simd.vmul(load_wide(source, slot, T.cast(row, "int32"), at), scale)
                    if spec.weight:
                        value = T.simd.vmul(value, load_wide(weight_ub, at))
                    store(x_ub, rounded(value), slot, T.cast(row, "int32"), at)

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, x_ub, residual_ub, _ = state
        T.copy(call.x[first : first + count, 0:hidden], x_ub[slot, 0:count, 0:hidden])
        if spec.residual:
            T.copy(call.residual[first : first + count, 0:hidden], residual_ub[slot, 0:count, 0:hidden])

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, x_ub, residual_ub, weight_ub = state
        normalise(x_ub, residual_ub, weight_ub, slot, count)

    @T.macro
    def store_rows(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, x_ub, residual_ub, _ = state
        T.copy(x_ub[slot, 0:count, 0:hidden], call.y[first : first + count, 0:hidden])
        if spec.residual:
            T.copy(residual_ub[slot, 0:count, 0:hidden], call.residual[first : first + count, 0:hidden])

    @T.macro
    def load_weight(state: Any) -> None:
        call, _, _, weight_ub = state
        T.copy(call.weight[0:hidden], weight_ub[0:hidden])

    run = row_pipeline(
        plan,
        cores,
        tokens,
        load=load,
        compute=compute,
        store=store_rows,
        prepare=load_weight if spec.weight else None,
    )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            x_ub = T.alloc_shared((plan.stages, plan.rows, pitch), dtype)
            residual_ub = T.alloc_shared((plan.stages, plan.rows, pitch), dtype) if spec.residual else x_ub
            weight_ub = T.alloc_shared((pitch,), dtype) if spec.weight else x_ub
            run((call, x_ub, residual_ub, weight_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="rmsnorm",
    summary="root-mean-square normalisation of rows, optional residual and weight",
    spec_type=RmsNormSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=ROW_KERNEL_SOURCES,
)
