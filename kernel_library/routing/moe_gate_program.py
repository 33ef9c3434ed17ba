"""The program of moe_gate: scores and winners row by row, then their weights and places."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kaas.kernel_library.entry import Entry, looked_at
from kaas.kernel_library.routing.expert_copies import physical_experts
from kaas.kernel_library.routing.expert_groups import group_of_lanes, group_sums, is_group
from kaas.kernel_library.routing.expert_scores import score
from kaas.kernel_library.routing.lane_topk import (
    NO_KEY,
    index_pitch,
    index_words,
    lane_indices,
    load_indices,
    ranking_keys,
    store_indices,
    sum_in_order,
    top_k,
    without_padding,
)
from kaas.kernel_library.spec import DYNAMIC
from kaas.kernel_library.vector.row_pipeline import row_pipeline
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowPlan, padded
from kaas.proto.launch import Parameter

if TYPE_CHECKING:
    from kaas.kernel_library.families.moe_gate import MoeGateSpec

MOE_GATE_PROGRAM_SOURCE = "kaas.kernel_library.routing.moe_gate_program"
"""For ``Family.sources``."""

LEAST_SUM = 1e-20
FLAG_PITCH = 64
"""Bytes of one stage's flags of tokens, one per row."""


def moe_gate_program(spec: "MoeGateSpec", parameters: Sequence[Parameter], plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: scores and winners row by row, then weights and maps."""
    import tilelang.ascend.language as T

    entry = Entry("moe_gate", parameters)
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    experts, pitch = spec.experts, padded(spec.experts)
    vectors, group_size = pitch // VECTOR_LANES, spec.experts // spec.groups
    topk, physical_topk, index_dtype = spec.topk, spec.physical_topk, spec.index_dtype
    logical, duplicates = spec.logical_experts, spec.duplicates
    last, is_softmax = vectors - 1, spec.scoring == "softmax"
    ranks, select, select_groups = ranking_keys(), top_k(vectors, topk), top_k(1, spec.topk_groups)
    sum_in_ranks = sum_in_order(topk)
    sums_of, mapped = group_sums(spec.groups, group_size, summed=2), physical_experts(duplicates)
    plain_score: Any = None if is_softmax else score(spec.scoring)

    def flag(buffer: Any, slot: Any, row: Any) -> Any:
        """The predicate of all lanes that the row's flag is set."""
        return T.simd.vcmps(T.simd.vld(buffer[slot, row], dist="BRC_B8"), 0, op="ne")

    def unsigned(value: Any) -> Any:
        return T.reinterpret(value, "uint32x64")

    @T.macro
    def softmax_terms(x_ub: Any, slot: Any, row: Any) -> Any:
        """The row's largest logit and the sum of exp(x - largest), in every lane."""
        top = T.simd.alloc_var("float32")
        top = T.simd.vdup(T.float32(-3.4028234663852886e38), "float32")
        for i in T.unroll(vectors, explicit=True):
            x = T.simd.vld(x_ub[slot, row, i * VECTOR_LANES])
            if pitch == experts:
                top = T.simd.vmax(top, x)
            else:
                inside = T.simd.vcmps(lane_indices(i), experts, op="lt")
                top = T.simd.vmax(top, T.simd.vsel(x, top, inside))
        largest = T.simd.vdupv(T.simd.vcmax(top))
        total = T.simd.alloc_var("float32")
        total = T.simd.vdup(0.0, "float32")
        for i in T.unroll(vectors, explicit=True):
            e = T.simd.vexp(T.simd.vsub(T.simd.vld(x_ub[slot, row, i * VECTOR_LANES]), largest))
            inside = T.simd.vcmps(lane_indices(i), experts, op="lt")
            total = T.simd.vadd(total, T.simd.vsel(e, T.simd.vdup(0.0, "float32"), inside))
        return largest, T.simd.vdupv(T.simd.vcadd(total))

    @T.macro
    def biased(buffers: Any, slot: Any, row: Any, i: Any, value: Any) -> Any:
        """What the experts are ranked by."""
        ranked = T.simd.alloc_var("float32")
        ranked = value
        if spec.image_bias:
            other = T.simd.vadd(value, T.simd.vld(buffers.image_bias[i * VECTOR_LANES]))
            if spec.bias:
                ranked = T.simd.vadd(value, T.simd.vld(buffers.bias[i * VECTOR_LANES]))
            ranked = T.simd.vsel(other, ranked, flag(buffers.image_token_mask, slot, row))
        elif spec.bias:
            ranked = T.simd.vadd(value, T.simd.vld(buffers.bias[i * VECTOR_LANES]))
        return ranked

    @T.macro
    def score_row(buffers: Any, keys: Any, slot: Any, row: Any) -> None:
        """The row's scores in place of its logits, and the keys of its experts."""
        if is_softmax:
            largest, total = softmax_terms(buffers.x, slot, row)
        for i in T.unroll(vectors, explicit=True):
            x = T.simd.vld(buffers.x[slot, row, i * VECTOR_LANES])
            s = T.simd.alloc_var("float32")
            s = T.simd.vdiv(T.simd.vexp(T.simd.vsub(x, largest)), total) if is_softmax else plain_score(x)
            # Softmax keeps the order of the logits, and upstream adds the bias to those.
            ranked = biased(buffers, slot, row, i, x if is_softmax else s)
            if spec.mask:
                s = T.simd.vsel(s, T.simd.vdup(0.0, "float32"), flag(buffers.mask, slot, row))
            T.simd.vsts(buffers.x[slot, row, i * VECTOR_LANES], s)
            if spec.is_grouped:
                T.simd.vsts(buffers.ranked[slot, row, i * VECTOR_LANES], ranked)
            else:
                keys[i] = ranks(ranked)

    @T.macro
    def group_keys(buffers: Any, keys: Any, open_group: Any, slot: Any, row: Any) -> None:
        """The keys of the experts in the row's best groups; lane g of a register stands for group g."""
        sums = ranks(sums_of(buffers.ranked, slot, row))
        open_group[0] = T.simd.vsel(sums, T.simd.vdup(NO_KEY + 1, "int32"), is_group(spec.groups))
        select_groups(open_group)
        # The selection leaves NO_KEY where it took a group.
        for i in T.unroll(vectors, explicit=True):
            group = group_of_lanes(i, group_size)
            is_open = T.simd.vcmps(T.simd.vselr(open_group[0], group), NO_KEY, op="eq")
            found = ranks(T.simd.vld(buffers.ranked[slot, row, i * VECTOR_LANES]))
            keys[i] = T.simd.vsel(found, T.simd.vdup(NO_KEY, "int32"), is_open)

    @T.macro
    def fixed(buffers: Any, slot: Any, row: Any, winners: Any) -> Any:
        """The winners, or the indices that came with a token whose routing is fixed."""
        given = load_indices(buffers.unmapped, topk, experts, index_dtype, slot, row, 0)
        return T.simd.vsel(given, winners, flag(buffers.fix_routing_mask, slot, row))

    @T.macro
    def weigh_row(call: Any, buffers: Any, slot: Any, row: Any, first: Any) -> None:
        """Weights and indices of a row whose winners lie in UB."""
        zero = T.simd.vdup(0.0, "float32")
        lanes = T.simd.vci(T.int32(0), "int32")
        winners = T.simd.alloc_var("int32")
        winners = T.simd.vld(buffers.winners[row, 0])
        if spec.fixed_routing:
            winners = fixed(buffers, slot, row, winners)
        is_expert = T.simd.vcmps(winners, 0, op="ge")
        taken = T.simd.vgather2(buffers.x[slot, row, 0], unsigned(winners), is_expert)
        chosen = T.simd.vsel(taken, zero, is_expert)
        # In the order of the ranks, as the weights are normalised elsewhere.
        total = sum_in_ranks(LEAST_SUM, chosen)
        weights = T.simd.alloc_var("float32")
        weights = T.simd.vmuls(T.simd.vdiv(chosen, total), call.routed_scaling_factor)
        indices = T.simd.alloc_var("int32")
        indices = winners
        if spec.shared_experts:
            is_routed = T.simd.vcmps(lanes, topk, op="lt")
            weights = T.simd.vsel(weights, T.simd.vdup(1.0, "float32"), is_routed)
            shared = T.simd.vadds(lanes, experts - topk)
            beyond = T.simd.vsel(
                shared, T.simd.vdup(-1, "int32"), T.simd.vcmps(lanes, physical_topk, op="lt")
            )
            indices = T.simd.vsel(indices, beyond, is_routed)
        if duplicates:
            indices = mapped(
                buffers.to_physical_map, buffers.logical_count, indices, first + row, call.ep_rank
            )
        if spec.mask:
            active = flag(buffers.mask, slot, row)
            none = T.simd.vdup(-1, "int32")
            weights = T.simd.vsel(weights, zero, active)
            indices = T.simd.vsel(indices, none, active)
            winners = T.simd.vsel(winners, none, active)
        store_indices(buffers.index, indices, physical_topk, index_dtype, slot, row, 0)
        places = T.simd.update_mask(T.uint32(physical_topk), 32)
        T.simd.vsts(buffers.weights[slot, row, 0], weights, places)
        if spec.unmapped:
            store_indices(buffers.unmapped, winners, topk, index_dtype, slot, row, 0)

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, buffers = state
        with T.SimdVF():
            keys = T.simd.alloc_local((vectors,), "int32")
            if spec.is_grouped:
                open_group = T.simd.alloc_local((1,), "int32")
                for row in T.serial(T.cast(count, "uint16")):
                    score_row(buffers, keys, slot, T.cast(row, "int32"))
                T.simd.mem_bar("VST_VLD")
                for row in T.serial(T.cast(count, "uint16")):
                    group_keys(buffers, keys, open_group, slot, T.cast(row, "int32"))
                    keys[last] = without_padding(keys[last], experts)
                    T.simd.vsts(buffers.winners[T.cast(row, "int32"), 0], select(keys))
            else:
                for row in T.serial(T.cast(count, "uint16")):
                    score_row(buffers, keys, slot, T.cast(row, "int32"))
                    keys[last] = without_padding(keys[last], experts)
                    T.simd.vsts(buffers.winners[T.cast(row, "int32"), 0], select(keys))
            T.simd.mem_bar("VST_VLD")
            for row in T.serial(T.cast(count, "uint16")):
                weigh_row(call, buffers, slot, T.cast(row, "int32"), first)
            # The next stage's winners go where this one's were read.
            T.simd.mem_bar("VLD_VST")

    @T.macro
    def load_flags(flags: Any, buffer: Any, slot: Any, first: Any, count: Any) -> None:
        T.copy(looked_at(flags, (tokens,), "uint8")[first : first + count], buffer[slot, 0:count])

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, buffers = state
        T.copy(call.logits[first : first + count, 0:experts], buffers.x[slot, 0:count, 0:experts])
        if spec.mask:
            load_flags(call.mask, buffers.mask, slot, first, count)
        if spec.image_bias:
            load_flags(call.image_token_mask, buffers.image_token_mask, slot, first, count)
        if spec.fixed_routing:
            load_flags(call.fix_routing_mask, buffers.fix_routing_mask, slot, first, count)
            words = index_words(topk, index_dtype)
            T.copy(
                looked_at(call.unmapped_topk_idx, (tokens, words), "int32")[first : first + count, 0:words],
                buffers.unmapped[slot, 0:count, 0:words],
            )

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, buffers = state
        words = index_words(physical_topk, index_dtype)
        T.copy(
            buffers.index[slot, 0:count, 0:words],
            looked_at(call.topk_idx, (tokens, words), "int32")[first : first + count, 0:words],
        )
        T.copy(
            buffers.weights[slot, 0:count, 0:physical_topk],
            call.topk_weights[first : first + count, 0:physical_topk],
        )
        if spec.unmapped:
            routed_words = index_words(topk, index_dtype)
            T.copy(
                buffers.unmapped[slot, 0:count, 0:routed_words],
                looked_at(call.unmapped_topk_idx, (tokens, routed_words), "int32")[
                    first : first + count, 0:routed_words
                ],
            )
        if spec.scores:
            T.copy(buffers.x[slot, 0:count, 0:experts], call.scores[first : first + count, 0:experts])

    @T.macro
    def load_tables(state: Any) -> None:
        call, buffers = state
        if spec.bias:
            T.copy(call.bias[0:experts], buffers.bias[0:experts])
        if spec.image_bias:
            T.copy(call.image_bias[0:experts], buffers.image_bias[0:experts])
        if duplicates:
            table = logical * duplicates
            T.copy(looked_at(call.to_physical_map, (table,))[0:table], buffers.to_physical_map[0:table])
        if duplicates > 1:
            T.copy(call.logical_count[0:logical], buffers.logical_count[0:logical])

    has_tables = spec.bias or spec.image_bias or duplicates > 0
    run = row_pipeline(
        plan,
        cores,
        tokens,
        load=load,
        compute=compute,
        store=store,
        prepare=load_tables if has_tables else None,
    )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            run((call, _Buffers(spec, plan)), core)

    return entry.prim_func(block)


class _Buffers:
    """The UB buffers of one program; those that the spec has no use for are missing."""

    def __init__(self, spec: "MoeGateSpec", plan: RowPlan) -> None:
        import tilelang.ascend.language as T

        def ring(columns: int, dtype: str) -> Any:
            return T.alloc_shared((plan.stages, plan.rows, columns), dtype)

        def flags() -> Any:
            return T.alloc_shared((plan.stages, FLAG_PITCH), "uint8")

        pitch = padded(spec.experts)
        self.x = ring(pitch, "float32")
        self.index = ring(index_pitch(spec.physical_topk, spec.index_dtype), "int32")
        self.weights = ring(index_pitch(spec.physical_topk, "int32"), "float32")
        self.winners = T.alloc_shared((plan.rows, VECTOR_LANES), "int32")
        if spec.is_grouped:
            self.ranked = ring(pitch, "float32")
        if spec.unmapped:
            self.unmapped = ring(index_pitch(spec.topk, spec.index_dtype), "int32")
        if spec.mask:
            self.mask = flags()
        if spec.image_bias:
            self.image_token_mask = flags()
            self.image_bias = T.alloc_shared((pitch,), "float32")
        if spec.fixed_routing:
            self.fix_routing_mask = flags()
        if spec.bias:
            self.bias = T.alloc_shared((pitch,), "float32")
        if spec.duplicates:
            self.to_physical_map = T.alloc_shared((padded(spec.logical_experts * spec.duplicates),), "int32")
        self.logical_count = None
        if spec.duplicates > 1:
            self.logical_count = T.alloc_shared((padded(spec.logical_experts),), "int32")
