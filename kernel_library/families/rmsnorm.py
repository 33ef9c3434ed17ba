"""rmsnorm: y = x * rsqrt(mean(x^2) + eps) (* weight), optionally after adding a residual."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

import msgspec

from kaas.kernel_library.family import BuiltKernel, Family
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
from kaas.proto.errors import DoesNotFit
from kaas.proto.launch import Extent, Parameter
from kaas.proto.target import Target

TILELANG_DTYPE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
VECTOR_LANES = 64
"""fp32 elements of one vector register."""
STAGE_BYTES = 32768
"""How much one stage should move: enough to hide the latency of a transfer, little enough for several."""
MAX_STAGES = 4
MAX_ROWS = 64
UNROLL = 4
"""Independent partial sums, so that one multiply-add need not wait for the one before."""

PASS_CONFIGS: dict[str, Any] = {
    # The program places every flag itself: no solver runs, and lowering takes a fraction of a second.
    "tl.enable_auto_schedule": False,
    # UB buffers live across iterations on several pipes, which TileLang's liveness analysis does not see.
    "tl.disable_shared_memory_reuse": True,
}


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
        plan_rows(self, target)


class RowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How rows pass through UB: at most ``rows`` per stage, ``stages`` in flight, each ``pitch`` elements."""

    rows: int
    stages: int
    pitch: int


def plan_rows(spec: RmsNormSpec, target: Target) -> RowPlan:
    """The row plan; raises :class:`DoesNotFit` if not even one row fits.

    A stage holds x, which y replaces, and the residual, which the sum replaces; the weight stays in UB.
    """
    pitch = -(-spec.hidden // VECTOR_LANES) * VECTOR_LANES
    element_bytes = DTYPE_BYTES[spec.dtype]
    row_bytes = pitch * element_bytes * (2 if spec.residual else 1)
    weight_bytes = pitch * element_bytes if spec.weight else 0
    need = row_bytes + weight_bytes
    if need > target.ub_bytes:
        excess = need - target.ub_bytes
        widest = target.ub_bytes // (need // pitch) // VECTOR_LANES * VECTOR_LANES
        raise DoesNotFit(
            f"a row of {spec.hidden} {spec.dtype} needs {need} bytes of UB, {excess} more than there are",
            field="hidden",
            legal=f"at most {widest} with these options",
            buffer="UB",
            excess_bytes=excess,
        )
    room = target.ub_bytes - weight_bytes
    rows = max(1, min(MAX_ROWS, STAGE_BYTES // row_bytes))
    return RowPlan(rows=rows, stages=min(MAX_STAGES, room // (rows * row_bytes)), pitch=pitch)


def build(spec: RmsNormSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores and UB size.

    Raises :class:`DoesNotFit` if a row does not fit UB.
    """
    plan = plan_rows(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        parameters=_parameters(spec),
        choices=msgspec.to_builtins(plan),
        pass_configs=dict(PASS_CONFIGS),
    )


def _parameters(spec: RmsNormSpec) -> tuple[Parameter, ...]:
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    rows = (tokens, spec.hidden)
    parameters = [Parameter(name="x", role="in", dtype=spec.dtype, shape=rows)]
    if spec.residual:
        parameters.append(Parameter(name="residual", role="inout", dtype=spec.dtype, shape=rows))
    if spec.weight:
        parameters.append(Parameter(name="weight", role="in", dtype=spec.dtype, shape=(spec.hidden,)))
    parameters.append(Parameter(name="y", role="out", dtype=spec.dtype, shape=rows))
    return tuple(parameters)


def _program(spec: RmsNormSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang prim_func: macros over one spec first, then the entry with the right arguments."""
    import tilelang.ascend.language as T

    dtype = TILELANG_DTYPE[spec.dtype]
    narrow = spec.dtype != "fp32"
    tokens = T.dynamic("tokens") if spec.tokens == DYNAMIC else spec.tokens
    hidden, pitch, stages = spec.hidden, plan.pitch, plan.stages
    full_vectors, tail = divmod(hidden, VECTOR_LANES)
    sums = next(count for count in (UNROLL, 2, 1) if full_vectors % count == 0)
    # Few tokens are spread over all cores instead of filling whole stages on some of them.
    rows = T.min(plan.rows, T.max(T.ceildiv(tokens, cores), 1))

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
    def block(x: Any, residual: Any, weight: Any, y: Any) -> None:
        with T.Kernel(cores) as core:
            x_ub = T.alloc_shared((stages, plan.rows, pitch), dtype)
            residual_ub = T.alloc_shared((stages, plan.rows, pitch), dtype) if spec.residual else x_ub
            weight_ub = T.alloc_shared((pitch,), dtype) if spec.weight else x_ub
            first = T.alloc_var("int32")
            count = T.alloc_var("int32")
            per_stage = T.alloc_var("int32")
            turns = T.alloc_var("int32")
            per_stage = rows
            for slot in T.serial(stages):
                T.ascend_set_flag("MTE3_MTE2", slot)
            if spec.weight:
                T.copy(weight[0:hidden], weight_ub[0:hidden])
            # A variable, because TVM turns a loop whose extent is known to be 0 or 1 into its body.
            turns = T.truncdiv(T.truncdiv(tokens + per_stage - 1, per_stage) + cores - 1 - core, cores)
            for turn in T.serial(turns):
                first = (turn * cores + core) * per_stage
                count = T.min(per_stage, tokens - first)
                T.ascend_wait_flag("MTE3_MTE2", turn % stages)
                T.copy(x[first : first + count, 0:hidden], x_ub[turn % stages, 0:count, 0:hidden])
                if spec.residual:
                    T.copy(
                        residual[first : first + count, 0:hidden],
                        residual_ub[turn % stages, 0:count, 0:hidden],
                    )
                T.ascend_set_flag("MTE2_V", turn % stages)
                T.ascend_wait_flag("MTE2_V", turn % stages)
                normalise(x_ub, residual_ub, weight_ub, turn % stages, count)
                T.ascend_set_flag("V_MTE3", turn % stages)
                T.ascend_wait_flag("V_MTE3", turn % stages)
                T.copy(x_ub[turn % stages, 0:count, 0:hidden], y[first : first + count, 0:hidden])
                if spec.residual:
                    T.copy(
                        residual_ub[turn % stages, 0:count, 0:hidden],
                        residual[first : first + count, 0:hidden],
                    )
                T.ascend_set_flag("MTE3_MTE2", turn % stages)
            for slot in T.serial(stages):
                T.ascend_wait_flag("MTE3_MTE2", slot)

    # One tensor type per argument: arguments that share a type object would be one buffer.
    x_type, residual_type, y_type = (T.Tensor((tokens, hidden), dtype) for _ in range(3))
    weight_type = T.Tensor((hidden,), dtype)
    if spec.residual and spec.weight:

        @T.prim_func
        def rmsnorm(x: x_type, residual: residual_type, weight: weight_type, y: y_type) -> None:
            block(x, residual, weight, y)

    elif spec.residual:

        @T.prim_func
        def rmsnorm(x: x_type, residual: residual_type, y: y_type) -> None:
            block(x, residual, None, y)

    elif spec.weight:

        @T.prim_func
        def rmsnorm(x: x_type, weight: weight_type, y: y_type) -> None:
            block(x, None, weight, y)

    else:

        @T.prim_func
        def rmsnorm(x: x_type, y: y_type) -> None:
            block(x, None, None, y)

    return rmsnorm


FAMILY = Family(
    name="rmsnorm",
    summary="root-mean-square normalisation of rows, optional residual and weight",
    spec_type=RmsNormSpec,
    build=build,
    module=__name__,
)
