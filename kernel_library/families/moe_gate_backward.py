"""moe_gate_backward: the gradient of a router's logits from those of its weights and of an auxiliary loss."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

from kaas.kernel_library.entry import Entry, looked_at
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.expert_scores import EXPERT_SCORES_SOURCE, slope
from kaas.kernel_library.routing.lane_topk import (
    INDEX_DTYPES,
    LANE_TOPK_SOURCE,
    MAX_TOPK,
    IndexDtype,
    index_pitch,
    index_words,
    lane_indices,
    load_indices,
    sum_in_order,
)
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
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
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_EXPERTS = 1024
LEAST_SUM = 1e-20
FLAG_PITCH = 64
"""Bytes of one stage's flags of tokens, one per row."""

SlopedScoring = Literal["sqrtsoftplus", "sigmoid", "identity"]
SLOPED_SCORINGS: tuple[SlopedScoring, ...] = ("sqrtsoftplus", "sigmoid", "identity")


class MoeGateBackwardSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="moe_gate_backward"
):
    """Backward pass of moe_gate on the vector cores, fp32.

    Arguments in call order: scores[tokens, experts] as moe_gate wrote them; topk_idx[tokens, topk], logical
    experts, -1 for none; topk_weights and grad_topk_weights [tokens, topk]; mask[tokens] and
    grad_scores_sum[sequences, experts] if ``auxiliary``; grad_logits[tokens, experts]; routed_scaling_factor.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    experts: Annotated[int, within(1, MAX_EXPERTS)]
    topk: Annotated[int, within(1, MAX_TOPK)]
    scoring: SlopedScoring = "sqrtsoftplus"
    auxiliary: bool = False
    index_dtype: IndexDtype = "int64"
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.experts, "experts", 1, MAX_EXPERTS)
        require_int(self.topk, "topk", 1, MAX_TOPK)
        require_one_of(self.scoring, "scoring", SLOPED_SCORINGS)
        require_bool(self.auxiliary, "auxiliary")
        require_one_of(self.index_dtype, "index_dtype", INDEX_DTYPES)
        require_dim(self.tokens, "tokens")
        require_row_tile(self.tile)
        if self.topk > self.experts:
            raise InvalidSpec(
                f"topk is {self.topk}; legal: at most the {self.experts} experts",
                field="topk",
                legal=f"an integer from 1 to {self.experts}",
            )

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the spec's own tile does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MoeGateBackwardSpec, target: Target) -> RowPlan:
    """The row plan: scores, which the gradient replaces, auxiliary gradients and what the router chose."""
    row = padded(spec.experts) * (2 if spec.auxiliary else 1)
    row += index_pitch(spec.topk, spec.index_dtype) + 2 * index_pitch(spec.topk, "int32")
    return plan_rows(
        target,
        row_bytes=4 * row,
        fixed_bytes=4 * FLAG_PITCH,
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        passes=3.0 * spec.topk + 10,
        what=f"a row of {spec.experts} scores",
        field="experts",
        given=spec.tile,
    )


def build(spec: MoeGateBackwardSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: MoeGateBackwardSpec) -> tuple[Parameter, ...]:
    """What a call takes, in call order."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    dense, chosen = (tokens, spec.experts), (tokens, spec.topk)
    taken = [
        Parameter(name="scores", role="in", dtype="fp32", shape=dense),
        Parameter(name="topk_idx", role="in", dtype=spec.index_dtype, shape=chosen),
        Parameter(name="topk_weights", role="in", dtype="fp32", shape=chosen),
        Parameter(name="grad_topk_weights", role="in", dtype="fp32", shape=chosen),
    ]
    if spec.auxiliary:
        sums = ("sequences", spec.experts)
        taken.append(Parameter(name="mask", role="in", dtype="bool", shape=(tokens,)))
        taken.append(Parameter(name="grad_scores_sum", role="in", dtype="fp32", shape=sums))
    taken.append(Parameter(name="grad_logits", role="out", dtype="fp32", shape=dense))
    taken.append(Parameter(name="routed_scaling_factor", role="scalar", dtype="fp32"))
    return tuple(taken)


def _program(spec: MoeGateBackwardSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: one vector function per sequence that a group of rows touches."""
    import tilelang.ascend.language as T

    entry = Entry("moe_gate_backward", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    sequences = entry.extent("sequences") if spec.auxiliary else 1
    experts, pitch, topk = spec.experts, padded(spec.experts), spec.topk
    vectors = pitch // VECTOR_LANES
    words, index_dtype = index_words(topk, spec.index_dtype), spec.index_dtype
    sum_in_ranks, slope_of = sum_in_order(topk), slope(spec.scoring)

    @T.macro
    def routed(call: Any, buffers: Any, grads: Any, slot: Any, row: Any) -> None:
        """By the chosen scores s: (f g - sum of w g) / sum of s, added up where an expert comes twice."""
        zero = T.simd.vdup(0.0, "float32")
        delta = T.simd.alloc_var("float32")
        indices = T.simd.alloc_var("int32")
        indices = load_indices(buffers.index, topk, experts, index_dtype, slot, row, 0)
        is_expert = T.simd.vcmps(indices, 0, op="ge")
        places = T.reinterpret(indices, "uint32x64")
        taken = T.simd.vgather2(buffers.x[slot, row, 0], places, is_expert)
        lanes = T.reinterpret(T.simd.vci(T.int32(0), "int32"), "uint32x64")
        grad = T.simd.vgather2(buffers.grads[slot, row, 0], lanes, is_expert)
        product = T.simd.vmul(T.simd.vgather2(buffers.weights[slot, row, 0], lanes, is_expert), grad)
        total = sum_in_ranks(LEAST_SUM, T.simd.vsel(taken, zero, is_expert))
        dot = sum_in_ranks(0.0, T.simd.vsel(product, zero, is_expert))
        scaled = T.simd.vsub(T.simd.vmuls(grad, call.routed_scaling_factor), dot)
        delta = T.simd.vsel(T.simd.vdiv(scaled, total), zero, is_expert)
        for i in T.unroll(vectors, explicit=True):
            grads[i] = zero
        for k in T.serial(T.uint16(topk)):
            place = T.simd.vdup(T.cast(k, "int32"), "int32")
            expert, share = T.simd.vselr(indices, place), T.simd.vselr(delta, place)
            for i in T.unroll(vectors, explicit=True):
                here = T.simd.vcmp(lane_indices(i), T.reinterpret(expert, "int32x64"), op="eq")
                grads[i] = T.simd.vadd(grads[i], T.simd.vsel(share, zero, here))

    @T.macro
    def auxiliary(buffers: Any, grads: Any, slot: Any, row: Any, sequence: Any) -> None:
        """By every score, for h the gradient of the sums of s / sum(s): (h - sum(h s) / sum(s)) / sum(s)."""
        zero = T.simd.vdup(0.0, "float32")
        total = T.simd.alloc_var("float32")
        dot = T.simd.alloc_var("float32")
        inverse = T.simd.alloc_var("float32")
        mean = T.simd.alloc_var("float32")
        total = zero
        dot = zero
        for i in T.unroll(vectors, explicit=True):
            inside = T.simd.vcmps(lane_indices(i), experts, op="lt")
            s = T.simd.vsel(T.simd.vld(buffers.x[slot, row, i * VECTOR_LANES]), zero, inside)
            h = T.simd.vsel(T.simd.vld(buffers.sums[slot, sequence, i * VECTOR_LANES]), zero, inside)
            total = T.simd.vadd(total, s)
            T.simd.vmula(dot, s, h)
        inverse = T.simd.vdiv(T.simd.vdup(1.0, "float32"), T.simd.vdupv(T.simd.vcadd(total)))
        active = T.simd.vcmps(T.simd.vld(buffers.mask[slot, row], dist="BRC_B8"), 0, op="ne")
        inverse = T.simd.vsel(inverse, zero, active)
        mean = T.simd.vsel(T.simd.vmul(T.simd.vdupv(T.simd.vcadd(dot)), inverse), zero, active)
        for i in T.unroll(vectors, explicit=True):
            h = T.simd.vld(buffers.sums[slot, sequence, i * VECTOR_LANES])
            T.simd.vmula(grads[i], T.simd.vsub(h, mean), inverse)

    @T.macro
    def rows_of(call: Any, buffers: Any, slot: Any, begin: Any, count: Any, sequence: Any) -> None:
        """Rows ``begin`` on of a stage, all of the stage's ``sequence``-th sequence."""
        with T.SimdVF():
            grads = T.simd.alloc_local((vectors,), "float32")
            for step in T.serial(T.cast(count, "uint16")):
                routed(call, buffers, grads, slot, begin + T.cast(step, "int32"))
                if spec.auxiliary:
                    auxiliary(buffers, grads, slot, begin + T.cast(step, "int32"), sequence)
                for i in T.unroll(vectors, explicit=True):
                    s = T.simd.vld(buffers.x[slot, begin + T.cast(step, "int32"), i * VECTOR_LANES])
                    product = T.simd.vmul(grads[i], slope_of(s))
                    T.simd.vsts(buffers.x[slot, begin + T.cast(step, "int32"), i * VECTOR_LANES], product)

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, buffers, length = state
        if spec.auxiliary:
            begin = T.alloc_var("int32")
            end = T.alloc_var("int32")
            touched = T.alloc_var("int32")
            touched = T.truncdiv(first + count - 1, length[0]) - T.truncdiv(first, length[0]) + 1
            for sequence in T.serial(touched):
                end = (T.truncdiv(first, length[0]) + sequence + 1) * length[0] - first
                begin = T.max(end - length[0], 0)
                rows_of(call, buffers, slot, begin, T.min(end, count) - begin, sequence)
        else:
            rows_of(call, buffers, slot, 0, count, 0)

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, buffers, length = state
        T.copy(call.scores[first : first + count, 0:experts], buffers.x[slot, 0:count, 0:experts])
        T.copy(
            looked_at(call.topk_idx, (tokens, words), "int32")[first : first + count, 0:words],
            buffers.index[slot, 0:count, 0:words],
        )
        T.copy(call.topk_weights[first : first + count, 0:topk], buffers.weights[slot, 0:count, 0:topk])
        T.copy(call.grad_topk_weights[first : first + count, 0:topk], buffers.grads[slot, 0:count, 0:topk])
        if spec.auxiliary:
            sequence = T.alloc_var("int32")
            touched = T.alloc_var("int32")
            sequence = T.truncdiv(first, length[0])
            touched = T.truncdiv(first + count - 1, length[0]) - sequence + 1
            T.copy(
                call.grad_scores_sum[sequence : sequence + touched, 0:experts],
                buffers.sums[slot, 0:touched, 0:experts],
            )
            T.copy(
                looked_at(call.mask, (tokens,), "uint8")[first : first + count], buffers.mask[slot, 0:count]
            )

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, buffers, _ = state
        T.copy(buffers.x[slot, 0:count, 0:experts], call.grad_logits[first : first + count, 0:experts])

    run = row_pipeline(plan, cores, tokens, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            length = T.alloc_local((1,), "int32")
            # Rounded up, so that no token's sequence lies behind the last one.
            length[0] = T.max(T.truncdiv(tokens + sequences - 1, T.max(sequences, 1)), 1)
            run((call, _Buffers(spec, plan), length), core)

    return entry.prim_func(block)


class _Buffers:
    """The UB buffers of one program."""

    def __init__(self, spec: MoeGateBackwardSpec, plan: RowPlan) -> None:
        import tilelang.ascend.language as T

        def ring(columns: int, dtype: str) -> Any:
            return T.alloc_shared((plan.stages, plan.rows, columns), dtype)

        self.x = ring(padded(spec.experts), "float32")
        self.index = ring(index_pitch(spec.topk, spec.index_dtype), "int32")
        self.weights = ring(index_pitch(spec.topk, "int32"), "float32")
        self.grads = ring(index_pitch(spec.topk, "int32"), "float32")
        if spec.auxiliary:
            self.sums = ring(padded(spec.experts), "float32")
            self.mask = T.alloc_shared((plan.stages, FLAG_PITCH), "uint8")


FAMILY = Family(
    name="moe_gate_backward",
    summary="the gradient of router logits from those of expert weights and of an auxiliary loss",
    spec_type=MoeGateBackwardSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, EXPERT_SCORES_SOURCE, LANE_TOPK_SOURCE),
    page=KernelPage(
        computes=(
            "With s the scores of a token, s_k those of its experts, w_k their weights, g_k the gradients of "
            "these, D = 1e-20 + s_1 + ... + s_topk and f the scaling factor:\n\n"
            "    ds_k = (f g_k - (w_1 g_1 + ... + w_topk g_topk)) / D\n\n"
            "An expert that comes twice gets both. With `auxiliary`, h is the row of `grad_scores_sum` of "
            "the token's sequence (tokens are shared out evenly), and every expert of a token in the `mask` "
            "gets (h_e - sum(h s) / sum(s)) / sum(s) as well. `grad_logits` is that times the slope of the "
            "score, which follows from the score: (1 - exp(-s^2)) / 2s for `sqrtsoftplus`."
        ),
        arguments={
            "scores": "row-major fp32, as moe_gate writes them",
            "topk_idx": "logical routed experts; -1 stands for none",
            "topk_weights": "fp32 weights of the same experts",
            "grad_topk_weights": "fp32 gradients of the weights",
            "mask": "true for tokens that count in the auxiliary loss",
            "grad_scores_sum": (
                "row-major fp32, gradients of each sequence's sums of s / sum(s); the number of tokens is a "
                "multiple of the number of sequences"
            ),
            "grad_logits": "row-major fp32",
            "routed_scaling_factor": "factor of the weights, as in the forward pass",
        },
        tolerance="2^-18 of the sum of the magnitudes of a value's terms",
        facts=("TileKernels: moe_topk_gate_backward",),
        serves=("tile_kernels.moe.moe_topk_gate_backward",),
        examples=(
            MoeGateBackwardSpec(experts=256, topk=8),
            MoeGateBackwardSpec(experts=384, topk=6, auxiliary=True),
        ),
    ),
)
