"""engram_gate_backward: gradients of the engram gate's streams, keys, values and weights."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

import math
from typing import Annotated, Any

from kaas.kernel_library.choice import Candidate, TooLarge, report
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.index_batches import BLOCK_BYTES, index_pitch
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    KernelSpec,
    require_bool,
    require_dim,
    require_float,
    require_int,
    within,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES
from kaas.kernel_library.vector.row_plan import (
    DMA_BYTES_PER_CYCLE,
    MAX_STAGES,
    NOMINAL_ROWS,
    STAGE_OVERHEAD_CYCLES,
    VECTOR_BYTES_PER_CYCLE,
    VECTOR_LANES,
    RowPlan,
)
from kaas.kernel_library.vector.wide_values import WIDE_VALUE_SOURCE, load_wide, store_wide
from kaas.proto.errors import DoesNotFit, InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_STREAMS = 8
SAVED = ("dot", "gate", "rstd_x", "rstd_k")
LEAST_NORMAL = 2.0**-126
TASK_EVENT = 7
"""Of the flags that guard what a core keeps during a task: weights and their gradient."""


class EngramGateBackwardSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="engram_gate_backward"
):
    """Gradients of :class:`EngramGateSpec`'s result, from what it saved.

    Arguments in call order: grad_y, x[tokens, streams, hidden] bf16; kv[tokens, streams+1, hidden] bf16;
    weight[streams, hidden] fp32; dot, gate, rstd_x, rstd_k[tokens, streams] fp32; image_token_mask[tokens]
    bool if ``image_mask``; grad_x[tokens, streams, hidden] bf16; grad_kv[tokens, streams+1, hidden] bf16;
    grad_weight_partial[partials, streams, hidden] fp32. Partial sum p covers the tokens p, p + partials,
    p + 2*partials, ... in that order, so that nothing depends on the core count. ``partials * streams`` tasks
    are shared out over the cores.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(64, 32768, multiple_of=64)]
    streams: Annotated[int, within(1, MAX_STREAMS)] = 4
    clamp: Annotated[float, within(0.0, 1.0)] = 1e-6
    image_mask: bool = False
    partials: Annotated[int, within(1, 1024)] = 16
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_int(self.streams, "streams", 1, MAX_STREAMS)
        require_int(self.hidden, "hidden", 64, 32768, multiple_of=64)
        if self.hidden % (64 * self.streams):
            legal = f"a multiple of {64 * self.streams} with {self.streams} streams"
            raise InvalidSpec(f"hidden is {self.hidden}; legal: {legal}", field="hidden", legal=legal)
        require_float(self.clamp, "clamp", 0.0, 1.0)
        require_bool(self.image_mask, "image_mask")
        require_int(self.partials, "partials", 1, 1024)
        require_dim(self.tokens, "tokens")

    @property
    def share(self) -> int:
        """Columns of the value's gradient that one stream's task computes."""
        return self.hidden // self.streams

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: EngramGateBackwardSpec, target: Target) -> RowPlan:
    """One token and stream per stage; raises :class:`DoesNotFit` if not even one stage fits."""
    kept = 2 * 4 * spec.hidden  # weight and its gradient
    stage = 2 * (4 * spec.hidden + (spec.streams - 1) * spec.share) + BLOCK_BYTES * (len(SAVED) + 1)
    tokens = NOMINAL_ROWS if spec.tokens == DYNAMIC else int(spec.tokens)
    steps = math.ceil(spec.partials * spec.streams / target.vector_cores) * math.ceil(tokens / spec.partials)
    move = stage / DMA_BYTES_PER_CYCLE
    compute = 3.0 * stage / VECTOR_BYTES_PER_CYCLE
    candidates: list[Candidate] = []
    too_large: list[TooLarge] = []
    for stages in range(1, MAX_STAGES + 1):
        tiles = {"rows": 1, "stages": stages}
        excess = kept + stages * stage - target.ub_bytes
        if excess > 0:
            too_large.append(TooLarge(tiles=tiles, buffer="UB", excess_bytes=excess))
            continue
        together = max(move, compute) + STAGE_OVERHEAD_CYCLES / (3 * max(stages - 1, 1))
        step = together if stages > 1 else move + compute + STAGE_OVERHEAD_CYCLES
        bound = "memory" if move >= compute else "vector"
        candidates.append(Candidate(tiles=tiles, cycles=steps * step, bound=bound))
    if not candidates:
        need = kept + stage
        excess = need - target.ub_bytes
        raise DoesNotFit(
            f"rows of {spec.hidden} need {need} bytes of UB, {excess} more than there are",
            field="hidden",
            legal="less",
            buffer="UB",
            excess_bytes=excess,
        )
    best = min(candidates, key=lambda one: one.cycles)
    return RowPlan(rows=1, stages=best.tiles["stages"], why=report(best, candidates, too_large))


def parameters(spec: EngramGateBackwardSpec) -> tuple[Parameter, ...]:
    """What a call takes: the result's gradient, what the forward kernel read and saved, the gradients."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    streams = (tokens, spec.streams, spec.hidden)
    keys = (tokens, spec.streams + 1, spec.hidden)
    weights = (spec.streams, spec.hidden)
    # Without tokens the partial sums are still to be written: they are zero.
    taken = [
        Parameter(name="grad_y", role="in", dtype="bf16", shape=streams, may_be_empty=True),
        Parameter(name="x", role="in", dtype="bf16", shape=streams, may_be_empty=True),
        Parameter(name="kv", role="in", dtype="bf16", shape=keys, may_be_empty=True),
        Parameter(name="weight", role="in", dtype="fp32", shape=weights),
    ]
    saved = (tokens, spec.streams)
    taken += [Parameter(name=name, role="in", dtype="fp32", shape=saved, may_be_empty=True) for name in SAVED]
    if spec.image_mask:
        taken.append(
            Parameter(name="image_token_mask", role="in", dtype="bool", shape=(tokens,), may_be_empty=True)
        )
    taken += [
        Parameter(name="grad_x", role="out", dtype="bf16", shape=streams, may_be_empty=True),
        Parameter(name="grad_kv", role="out", dtype="bf16", shape=keys, may_be_empty=True),
        Parameter(name="grad_weight_partial", role="out", dtype="fp32", shape=(spec.partials, *weights)),
    ]
    return tuple(taken)


def build(spec: EngramGateBackwardSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a row does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: EngramGateBackwardSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``.

    A task is one stream of the tokens of one partial sum. The gradient of the value needs all streams of a
    token; each stream's task computes the columns of its share.
    """
    import tilelang.ascend.language as T

    entry = Entry("engram_gate_backward", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    hidden, streams, share, partials = spec.hidden, spec.streams, spec.share, spec.partials
    stages = plan.stages
    tasks = partials * streams
    vectors = hidden // VECTOR_LANES
    together = 2 if vectors % 2 == 0 else 1

    @T.macro
    def load(call: Any, rows: Any, slot: Any, token: Any, stream: Any) -> None:
        grad_ub, other_ub, x_ub, key_ub, value_ub, saved_ub, (mask_ub, _) = rows
        T.copy(call.grad_y[token, stream, 0:hidden], grad_ub[slot, 0:hidden])
        T.copy(call.x[token, stream, 0:hidden], x_ub[slot, 0:hidden])
        T.copy(call.kv[token, stream, 0:hidden], key_ub[slot, 0:hidden])
        T.copy(call.kv[token, streams, 0:hidden], value_ub[slot, 0:hidden])
        if streams > 1:  # TVM traces the body of a loop even where it has no turn
            for away in range(1, streams):
                other = T.truncmod(stream + away, streams)
                T.copy(
                    call.grad_y[token, other, stream * share : stream * share + share],
                    other_ub[slot, away - 1, 0:share],
                )
        for which, name in enumerate(SAVED):
            T.copy(getattr(call, name)[token, 0:streams], saved_ub[slot, which, 0:streams])
        if spec.image_mask:
            T.copy(call.image_token_mask[token : token + 1], mask_ub[slot, 0:1])

    @T.macro
    def gate_gradient(rows: Any, slot: Any) -> Any:
        """sum(grad_y * v) in every lane."""
        grad_ub, _, _, _, value_ub, _, _ = rows
        total = T.simd.alloc_local((together,), "float32")
        for i in T.unroll(together, explicit=True):
            total[i] = T.simd.vdup(0.0, "float32")
        for group in T.serial(T.uint16(vectors // together)):
            for i in T.unroll(together, explicit=True):
                at = (T.cast(group, "int32") * together + i) * VECTOR_LANES
                T.simd.vmula(
                    total[i], load_wide("bf16", grad_ub, slot, at), load_wide("bf16", value_ub, slot, at)
                )
        if together == 2:
            total[0] = T.simd.vadd(total[0], total[1])
        return T.simd.vdupv(T.simd.vcadd(total[0]))

    @T.macro
    def saved_value(rows: Any, slot: Any, which: int, stream: Any) -> Any:
        _, _, _, _, _, saved_ub, _ = rows
        return T.simd.vld(saved_ub[slot, which, stream], dist="BRC_B32")

    @T.macro
    def text_only(value: Any, instead: Any, text: Any) -> Any:
        """``value``, but ``instead`` for a token of an image."""
        return T.simd.vsel(value, instead, text) if spec.image_mask else value

    @T.macro
    def value_gradient(rows: Any, slot: Any, stream: Any, text: Any) -> None:
        grad_ub, other_ub, _, _, value_ub, _, _ = rows
        total = T.simd.alloc_local((1,), "float32")
        for vector in T.serial(T.uint16(share // VECTOR_LANES)):
            at = T.cast(vector, "int32") * VECTOR_LANES
            own = load_wide("bf16", grad_ub, slot, stream * share + at)
            total[0] = T.simd.vmul(own, saved_value(rows, slot, 1, stream))
            if streams > 1:
                for away in T.unroll(1, streams, explicit=True):
                    gate = saved_value(rows, slot, 1, T.truncmod(stream + away, streams))
                    T.simd.vmula(total[0], load_wide("bf16", other_ub, slot, away - 1, at), gate)
            kept = text_only(total[0], T.simd.vdup(0.0, "float32"), text)
            store_wide("bf16", value_ub, kept, slot, stream * share + at)

    @T.macro
    def row_gradients(
        rows: Any, kept: Any, slot: Any, beta: Any, pull_x: Any, pull_k: Any, text: Any
    ) -> None:
        grad_ub, _, x_ub, key_ub, _, _, _ = rows
        weight_ub, weight_grad_ub = kept
        total = T.simd.alloc_local((3,), "float32")
        for vector in T.serial(T.uint16(vectors)):
            at = T.cast(vector, "int32") * VECTOR_LANES
            grad = load_wide("bf16", grad_ub, slot, at)
            x, key = load_wide("bf16", x_ub, slot, at), load_wide("bf16", key_ub, slot, at)
            weight, old = T.simd.vld(weight_ub[at]), T.simd.vld(weight_grad_ub[at])
            beta_x, beta_k = T.simd.vmul(beta, x), T.simd.vmul(beta, key)
            total[0] = grad
            T.simd.vmula(total[0], weight, beta_k)
            T.simd.vmula(total[0], pull_x, x)
            total[1] = T.simd.vmul(weight, beta_x)
            T.simd.vmula(total[1], pull_k, key)
            total[2] = old
            T.simd.vmula(total[2], beta_x, key)
            store_wide("bf16", grad_ub, text_only(total[0], grad, text), slot, at)
            store_wide("bf16", x_ub, text_only(total[1], T.simd.vdup(0.0, "float32"), text), slot, at)
            T.simd.vsts(weight_grad_ub[at], text_only(total[2], old, text))

    @T.macro
    def compute(rows: Any, kept: Any, slot: Any, stream: Any) -> None:
        _, _, _, _, _, _, (_, mask_bytes) = rows
        with T.SimdVF():
            text = None
            if spec.image_mask:
                text = T.simd.vcmps(T.simd.vld(mask_bytes[slot, 0], dist="BRC_B8"), 0, op="eq")
            dot, gate = saved_value(rows, slot, 0, stream), saved_value(rows, slot, 1, stream)
            rstd_x, rstd_k = saved_value(rows, slot, 2, stream), saved_value(rows, slot, 3, stream)
            scale = T.simd.vmuls(T.simd.vmul(rstd_x, rstd_k), hidden**-0.5)
            size = T.simd.vabs(dot)
            # Below the clamp the gate is constant; the root of nothing has no slope that could be used.
            active = T.simd.vcmps(T.simd.vmul(size, scale), max(spec.clamp, LEAST_NORMAL), op="ge")
            slope = T.simd.vmuls(T.simd.vsqrt(T.simd.vdiv(scale, size)), 0.5)
            logit_slope = T.simd.vsub(gate, T.simd.vmul(gate, gate))
            steep = T.simd.vmul(T.simd.vmul(gate_gradient(rows, slot), logit_slope), slope)
            beta = T.simd.vsel(steep, T.simd.vdup(0.0, "float32"), active)
            pull = T.simd.vmuls(T.simd.vmul(beta, dot), -1.0 / hidden)
            pull_x = T.simd.vmul(T.simd.vmul(pull, rstd_x), rstd_x)
            pull_k = T.simd.vmul(T.simd.vmul(pull, rstd_k), rstd_k)
            value_gradient(rows, slot, stream, text)
            row_gradients(rows, kept, slot, beta, pull_x, pull_k, text)

    @T.macro
    def store(call: Any, rows: Any, slot: Any, token: Any, stream: Any) -> None:
        grad_ub, _, x_ub, _, value_ub, _, _ = rows
        left = stream * share
        T.copy(grad_ub[slot, 0:hidden], call.grad_x[token, stream, 0:hidden])
        T.copy(x_ub[slot, 0:hidden], call.grad_kv[token, stream, 0:hidden])
        T.copy(value_ub[slot, left : left + share], call.grad_kv[token, streams, left : left + share])

    @T.macro
    def run_task(call: Any, rows: Any, kept: Any, task: Any) -> None:
        weight_ub, weight_grad_ub = kept
        stream = T.alloc_var("int32")
        partial = T.alloc_var("int32")
        count = T.alloc_var("int32")
        token = T.alloc_var("int32")
        stream = T.truncmod(task, streams)
        partial = T.truncdiv(task, streams)
        count = T.max(tokens - partial, 0)
        count = T.truncdiv(count, partials) + T.min(T.truncmod(count, partials), 1)
        T.ascend_wait_flag("V_MTE2", TASK_EVENT)
        T.copy(call.weight[stream, 0:hidden], weight_ub[0:hidden])
        T.ascend_set_flag("MTE2_V", TASK_EVENT)
        T.ascend_wait_flag("MTE2_V", TASK_EVENT)
        T.ascend_wait_flag("MTE3_V", TASK_EVENT)
        with T.SimdVF():
            for vector in T.serial(T.uint16(vectors)):
                T.simd.vsts(
                    weight_grad_ub[T.cast(vector, "int32") * VECTOR_LANES], T.simd.vdup(0.0, "float32")
                )
        for step in T.serial(count):
            slot = step % stages
            token = partial + step * partials
            T.ascend_wait_flag("MTE3_MTE2", slot)
            load(call, rows, slot, token, stream)
            T.ascend_set_flag("MTE2_V", slot)
            T.ascend_wait_flag("MTE2_V", slot)
            compute(rows, kept, slot, stream)
            T.ascend_set_flag("V_MTE3", slot)
            T.ascend_wait_flag("V_MTE3", slot)
            store(call, rows, slot, token, stream)
            T.ascend_set_flag("MTE3_MTE2", slot)
        T.ascend_set_flag("V_MTE2", TASK_EVENT)
        T.ascend_set_flag("V_MTE3", TASK_EVENT)
        T.ascend_wait_flag("V_MTE3", TASK_EVENT)
        T.copy(weight_grad_ub[0:hidden], call.grad_weight_partial[partial, stream, 0:hidden])
        T.ascend_set_flag("MTE3_V", TASK_EVENT)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            turns = T.alloc_var("int32")
            grad_ub = T.alloc_shared((stages, hidden), "bfloat16")
            other_ub = T.alloc_shared((stages, streams - 1, share), "bfloat16") if streams > 1 else grad_ub
            x_ub = T.alloc_shared((stages, hidden), "bfloat16")
            key_ub = T.alloc_shared((stages, hidden), "bfloat16")
            value_ub = T.alloc_shared((stages, hidden), "bfloat16")
            saved_ub = T.alloc_shared((stages, len(SAVED), index_pitch(streams)), "float32")
            weight_ub = T.alloc_shared((hidden,), "float32")
            weight_grad_ub = T.alloc_shared((hidden,), "float32")
            mask_ub, mask_bytes = x_ub, x_ub
            if spec.image_mask:
                mask_ub = T.alloc_shared((stages, BLOCK_BYTES), "bool")
                mask_bytes = T.view(mask_ub, (stages, BLOCK_BYTES), "uint8")
            rows = (grad_ub, other_ub, x_ub, key_ub, value_ub, saved_ub, (mask_ub, mask_bytes))
            for slot in T.serial(stages):
                T.ascend_set_flag("MTE3_MTE2", slot)
            T.ascend_set_flag("V_MTE2", TASK_EVENT)
            T.ascend_set_flag("MTE3_V", TASK_EVENT)
            turns = T.truncdiv(tasks + cores - 1 - core, cores)
            for turn in T.serial(turns):
                run_task(call, rows, (weight_ub, weight_grad_ub), turn * cores + core)
            T.ascend_wait_flag("V_MTE2", TASK_EVENT)
            T.ascend_wait_flag("MTE3_V", TASK_EVENT)
            for slot in T.serial(stages):
                T.ascend_wait_flag("MTE3_MTE2", slot)

    return entry.prim_func(block)


FAMILY = Family(
    name="engram_gate_backward",
    summary="gradients of the engram gate's streams, keys, values and weights",
    spec_type=EngramGateBackwardSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, "kaas.kernel_library.routing.index_batches", WIDE_VALUE_SOURCE),
    page=KernelPage(
        computes=(
            "With the names of engram_gate, for each token and stream, sums over `hidden`:\n\n"
            "    s      = rstd_x * rstd_k / sqrt(hidden)\n"
            "    beta   = sum(grad_y * v) * gate*(1 - gate) * sqrt(s / |dot|) / 2\n"
            "             0 where |dot|*s is below the clamp, or dot is 0\n"
            "    grad_x = grad_y + beta*weight*k - beta*dot*rstd_x^2/hidden * x\n"
            "    grad_k = beta*weight*x - beta*dot*rstd_k^2/hidden * k\n"
            "    grad_v = sum over streams of gate * grad_y\n"
            "    grad_weight_partial[p] = sum over its tokens of beta * x * k\n\n"
            "in fp32; the first three are rounded to bf16 once. Tokens of an image pass grad_y on and give\n"
            "nothing else. engram_weight_gradient adds the partial sums up. The `partials * streams` tasks\n"
            "are shared out over the vector cores: a multiple of their number keeps all of them busy."
        ),
        arguments={
            "grad_y": "gradient of the new streams",
            "x": "streams, as engram_gate read them",
            "kv": "one key per stream, then the value",
            "weight": "product of the two norms' weights",
            "dot": "saved by engram_gate",
            "gate": "saved by engram_gate",
            "rstd_x": "saved by engram_gate",
            "rstd_k": "saved by engram_gate",
            "image_token_mask": "true for tokens of an image",
            "grad_x": "gradient of the streams",
            "grad_kv": "gradients of the keys, then of the value",
            "grad_weight_partial": "sums over the tokens p, p + partials, ...; zero for those without tokens",
        },
        tolerance="calc_diff below 1e-8 against float64, bf16 gradients after the same rounding",
        facts=(
            "Butterfingrz/TileKernels on github.com: tile_kernels/engram/engram_gate_bwd_kernel.py and "
            "engram_gate_bwd_asc.py (shapes, the clamp's gradient)",
        ),
        serves=("tile_kernels.engram.engram_gate_bwd",),
        examples=(EngramGateBackwardSpec(hidden=7168),),
    ),
)
