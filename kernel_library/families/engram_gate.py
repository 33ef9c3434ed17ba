"""engram_gate: a token's value vector added to each of its streams, as far as a gate lets it."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.index_batches import BLOCK_BYTES, index_pitch
from kaas.kernel_library.spec import (
    DTYPE_BYTES,
    DYNAMIC,
    Dim,
    Epsilon,
    KernelSpec,
    require_bool,
    require_dim,
    require_epsilon,
    require_float,
    require_int,
    within,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowPlan, padded, plan_rows
from kaas.kernel_library.vector.wide_values import WIDE_VALUE_SOURCE, load_wide, store_wide
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_STREAMS = 8
SAVED = ("dot", "gate", "rstd_x", "rstd_k")
"""What the backward kernel needs of each token and stream."""


class EngramGateSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="engram_gate"):
    """y = x + gate * v, where the gate compares each stream with its key, both normalised.

    Arguments in call order: x[tokens, streams, hidden] bf16, updated in place if ``in_place``;
    kv[tokens, streams+1, hidden] bf16, the keys and then the value; weight[streams, hidden] fp32;
    image_token_mask[tokens] bool if ``image_mask``; y[tokens, streams, hidden] bf16 unless ``in_place``;
    dot, gate, rstd_x, rstd_k[tokens, streams] fp32 if ``save``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Annotated[int, within(64, 32768, multiple_of=64)]
    streams: Annotated[int, within(1, MAX_STREAMS)] = 4
    eps: Epsilon = 1e-20
    clamp: Annotated[float, within(0.0, 1.0)] = 1e-6
    save: bool = True
    image_mask: bool = False
    in_place: bool = False
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_int(self.hidden, "hidden", 64, 32768, multiple_of=64)
        require_int(self.streams, "streams", 1, MAX_STREAMS)
        require_epsilon(self.eps, "eps")
        require_float(self.clamp, "clamp", 0.0, 1.0)
        require_bool(self.save, "save")
        require_bool(self.image_mask, "image_mask")
        require_bool(self.in_place, "in_place")
        if self.in_place and self.save:
            raise InvalidSpec(
                "in_place is true; legal: false, or save false: the backward kernel reads the old x",
                field="in_place",
                legal=[False],
            )
        require_dim(self.tokens, "tokens")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: EngramGateSpec, target: Target) -> tuple[int, RowPlan]:
    """How many streams a core takes, and the plan of its rows; a row is one token's part.

    As many streams as possible, since each core reads the value for itself; but two stages must fit beside
    the weights. Raises :class:`DoesNotFit` if not even one stream fits.
    """
    for streams in (count for count in range(spec.streams, 0, -1) if spec.streams % count == 0):
        small = BLOCK_BYTES * (len(SAVED) * spec.save + spec.image_mask)
        last = streams == 1
        row_bytes = (2 * streams + 1) * spec.hidden * DTYPE_BYTES["bf16"] + small
        weight_bytes = streams * spec.hidden * DTYPE_BYTES["fp32"]
        if not last and weight_bytes + 2 * row_bytes > target.ub_bytes:
            continue
        plan = plan_rows(
            target,
            row_bytes=row_bytes,
            fixed_bytes=weight_bytes,
            rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
            passes=3.0,
            what=f"one stream of {spec.hidden}",
        )
        return streams, plan
    raise AssertionError("one stream is always tried")


def parameters(spec: EngramGateSpec) -> tuple[Parameter, ...]:
    """What a call takes: streams, keys and value, weights, the optional mask, results."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    streams = (tokens, spec.streams, spec.hidden)
    taken = [
        Parameter(name="x", role="inout" if spec.in_place else "in", dtype="bf16", shape=streams),
        Parameter(name="kv", role="in", dtype="bf16", shape=(tokens, spec.streams + 1, spec.hidden)),
        Parameter(name="weight", role="in", dtype="fp32", shape=(spec.streams, spec.hidden)),
    ]
    if spec.image_mask:
        taken.append(Parameter(name="image_token_mask", role="in", dtype="bool", shape=(tokens,)))
    if not spec.in_place:
        taken.append(Parameter(name="y", role="out", dtype="bf16", shape=streams))
    if spec.save:
        taken += [
            Parameter(name=name, role="out", dtype="fp32", shape=(tokens, spec.streams)) for name in SAVED
        ]
    return tuple(taken)


def build(spec: EngramGateSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a row does not fit UB."""
    streams, plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, streams, plan, target.vector_cores),
        choices=plan.choices(streams_per_core=streams),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: EngramGateSpec, held: int, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: each core keeps the weights of ``held`` streams and walks tokens."""
    import tilelang.ascend.language as T

    entry = Entry("engram_gate", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    hidden, streams = spec.hidden, spec.streams
    parts = streams // held
    rows, stages = plan.rows, plan.stages
    vectors = hidden // VECTOR_LANES
    together = 2 if vectors % 2 == 0 else 1
    mask_pitch = padded(rows, BLOCK_BYTES)

    @T.macro
    def sums(x_ub: Any, kv_ub: Any, weight_ub: Any, slot: Any, row: Any, stream: Any) -> Any:
        """Sums over a row of x^2, k^2 and x*w*k, in lane 0."""
        total = T.simd.alloc_local((3 * together,), "float32")
        for i in T.unroll(3 * together, explicit=True):
            total[i] = T.simd.vdup(0.0, "float32")
        for group in T.serial(T.uint16(vectors // together)):
            for i in T.unroll(together, explicit=True):
                at = (T.cast(group, "int32") * together + i) * VECTOR_LANES
                x = load_wide("bf16", x_ub, slot, row, stream, at)
                key = load_wide("bf16", kv_ub, slot, row, stream, at)
                T.simd.vmula(total[3 * i], x, x)
                T.simd.vmula(total[3 * i + 1], key, key)
                T.simd.vmula(total[3 * i + 2], T.simd.vmul(x, T.simd.vld(weight_ub[stream, at])), key)
        for which in T.unroll(3, explicit=True):
            if together == 2:
                total[which] = T.simd.vadd(total[which], total[3 + which])
            total[which] = T.simd.vcadd(total[which])
        return total

    @T.macro
    def inverse_rms(squares: Any) -> Any:
        mean = T.simd.vmuls(squares, 1.0 / hidden)
        root = T.simd.vsqrt(T.simd.vadds(mean, spec.eps))
        return T.simd.vdiv(T.simd.vdup(1.0, "float32"), root)

    @T.macro
    def gate_of(dot: Any) -> Any:
        """sigmoid of the signed root of a normalised dot product."""
        root = T.simd.vsqrt(T.simd.vmaxs(T.simd.vabs(dot), spec.clamp))
        logit = T.simd.vsel(root, T.simd.vneg(root), T.simd.vcmps(dot, 0.0, op="ge"))
        one = T.simd.vdup(1.0, "float32")
        return T.simd.vdiv(one, T.simd.vadd(one, T.simd.vexp(T.simd.vneg(logit))))

    @T.macro
    def load_weight(state: Any) -> None:
        call, (_, _, weight_ub, _, _), part = state
        T.copy(call.weight[part * held : part * held + held, 0:hidden], weight_ub[0:held, 0:hidden])

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, (x_ub, kv_ub, _, (mask_ub, _), _), part = state
        stream = part * held
        T.copy(
            call.x[first : first + count, stream : stream + held, 0:hidden],
            x_ub[slot, 0:count, 0:held, 0:hidden],
        )
        for row in T.serial(count):
            T.copy(call.kv[first + row, stream : stream + held, 0:hidden], kv_ub[slot, row, 0:held, 0:hidden])
            T.copy(call.kv[first + row, streams, 0:hidden], kv_ub[slot, row, held, 0:hidden])
        if spec.image_mask:
            T.copy(call.image_token_mask[first : first + count], mask_ub[slot, 0:count])

    @T.macro
    def gate_row(buffers: Any, slot: Any, row: Any, stream: Any) -> None:
        x_ub, kv_ub, weight_ub, (_, mask_bytes), saved_ub = buffers
        total = sums(x_ub, kv_ub, weight_ub, slot, row, stream)
        rstd_x, rstd_k = inverse_rms(total[0]), inverse_rms(total[1])
        dot = T.simd.vmuls(T.simd.vmul(T.simd.vmul(total[2], rstd_x), rstd_k), hidden**-0.5)
        gate = gate_of(dot)
        if spec.image_mask:
            text = T.simd.vcmps(T.simd.vld(mask_bytes[slot, row], dist="BRC_B8"), 0, op="eq")
        if spec.save:
            for which, value in enumerate((total[2], gate, rstd_x, rstd_k)):
                kept = T.simd.vsel(value, T.simd.vdup(0.0, "float32"), text) if spec.image_mask else value
                T.simd.vsts(saved_ub[slot, which, row, stream], kept, dist="ONEPT_B32")
        factor = T.simd.vdupv(gate)
        result = T.simd.alloc_local((1,), "float32")
        for vector in T.serial(T.uint16(vectors)):
            at = T.cast(vector, "int32") * VECTOR_LANES
            old = load_wide("bf16", x_ub, slot, row, stream, at)
            result[0] = old
            T.simd.vmula(result[0], load_wide("bf16", kv_ub, slot, row, held, at), factor)
            if spec.image_mask:
                result[0] = T.simd.vsel(result[0], old, text)
            store_wide("bf16", x_ub, result[0], slot, row, stream, at)

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, buffers, _ = state
        with T.SimdVF():
            for row in T.serial(T.cast(count, "uint16")):
                for stream in T.serial(T.uint16(held)):
                    gate_row(buffers, slot, T.cast(row, "int32"), T.cast(stream, "int32"))

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, (x_ub, _, _, _, saved_ub), part = state
        stream = part * held
        T.copy(
            x_ub[slot, 0:count, 0:held, 0:hidden],
            (call.x if spec.in_place else call.y)[first : first + count, stream : stream + held, 0:hidden],
        )
        if spec.save:
            for which, name in enumerate(SAVED):
                T.copy(
                    saved_ub[slot, which, 0:count, 0:held],
                    getattr(call, name)[first : first + count, stream : stream + held],
                )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            x_ub = T.alloc_shared((stages, rows, held, hidden), "bfloat16")
            kv_ub = T.alloc_shared((stages, rows, held + 1, hidden), "bfloat16")
            weight_ub = T.alloc_shared((held, hidden), "float32")
            mask_ub, mask_bytes = x_ub, x_ub
            if spec.image_mask:
                mask_ub = T.alloc_shared((stages, mask_pitch), "bool")
                mask_bytes = T.view(mask_ub, (stages, mask_pitch), "uint8")
            saved_ub = x_ub
            if spec.save:
                saved_ub = T.alloc_shared((stages, len(SAVED), rows, index_pitch(held)), "float32")
            part = core % parts
            run = row_pipeline(
                plan,
                T.truncdiv(cores - part + parts - 1, parts),
                tokens,
                load=load,
                compute=compute,
                store=store,
                prepare=load_weight,
            )
            buffers = (x_ub, kv_ub, weight_ub, (mask_ub, mask_bytes), saved_ub)
            run((call, buffers, part), core // parts)

    return entry.prim_func(block)


FAMILY = Family(
    name="engram_gate",
    summary="a token's value vector added to each of its streams, as far as a gate lets it",
    spec_type=EngramGateSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, "kaas.kernel_library.routing.index_batches", WIDE_VALUE_SOURCE),
    page=KernelPage(
        computes=(
            "For each token and stream, with its key `k` and the token's value `v`, sums over `hidden`:\n\n"
            "    dot    = sum(x * weight * k)\n"
            "    rstd_x = rsqrt(mean(x^2) + eps)         rstd_k = rsqrt(mean(k^2) + eps)\n"
            "    d      = dot * rstd_x * rstd_k / sqrt(hidden)\n"
            "    gate   = sigmoid(sign(d) * sqrt(max(|d|, clamp)))       sign(0) = 1\n"
            "    y      = x + gate * v\n\n"
            "in fp32 with one rounding to bf16. Tokens of an image keep their x; what is saved of them is 0."
        ),
        arguments={
            "x": "streams of each token",
            "kv": "one key per stream, then the value",
            "weight": "product of the two norms' weights, as engram_fused_weight makes it",
            "image_token_mask": "true for tokens of an image",
            "y": "the streams with the value added",
            "dot": "sum(x * weight * k), for the backward kernel",
            "gate": "the gate",
            "rstd_x": "reciprocal root mean square of x",
            "rstd_k": "reciprocal root mean square of k",
        },
        tolerance="calc_diff below 2e-10 against float64, y after the same rounding to bf16",
        facts=(
            "Butterfingrz/TileKernels on github.com: tile_kernels/engram/engram_gate_fwd_kernel.py and "
            "engram_gate_fwd_asc.py (shapes, formula, sign of 0)",
        ),
        serves=("tile_kernels.engram.engram_gate_fwd",),
        examples=(
            EngramGateSpec(hidden=7168),
            EngramGateSpec(hidden=4096, save=False, in_place=True, image_mask=True),
        ),
    ),
)
