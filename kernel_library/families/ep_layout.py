"""ep_layout: which ranks each token goes to, and the slot that its record takes there."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any

from kaas.kernel_library.entry import Entry, looked_at
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.expert_parallel import (
    EXPERT_PARALLEL_SOURCES,
    ExpertParallelTopology,
    require_topology,
)
from kaas.kernel_library.routing.lane_topk import (
    INDEX_DTYPES,
    LANE_TOPK_SOURCE,
    IndexDtype,
    index_pitch,
    index_words,
    load_indices,
    store_indices,
)
from kaas.kernel_library.routing.part_counts import (
    PART_COUNTS_SOURCE,
    PARTS,
    SUM_BYTES,
    part_rows,
    parts_per_core,
    pass_barrier,
    sums_of_parts,
)
from kaas.kernel_library.spec import DYNAMIC, Dim, KernelSpec, require_dim, require_one_of
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import (
    VECTOR_LANES,
    RowPlan,
    RowTile,
    padded,
    plan_rows,
    require_row_tile,
)
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

COUNT_EVENT, SUM_EVENT = 5, 6


class EpLayoutSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="ep_layout"):
    """Where the tokens of one rank go, on the vector cores.

    Arguments in call order: topk_idx[tokens, topk] of ``index_dtype``; rank, an int32 scalar;
    num_tokens_per_rank[ranks] and num_tokens_per_expert[experts] int32; is_token_in_rank[tokens, ranks] bool;
    dst_slot[tokens, topk] int32; local_topk_idx[tokens, topk] of ``index_dtype``; rank_counts[128, ranks] and
    expert_counts[128, experts] int32, a workspace.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    topology: ExpertParallelTopology
    index_dtype: IndexDtype = "int64"
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_topology(self.topology)
        require_one_of(self.index_dtype, "index_dtype", INDEX_DTYPES)
        require_dim(self.tokens, "tokens", self.topology.max_tokens_per_rank)
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if counters and a token's row do not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: EpLayoutSpec, target: Target) -> RowPlan:
    """The plan of stages of tokens: indices in, slots, local indices and ranks out."""
    topk, ranks = spec.topology.topk, padded(spec.topology.ranks)
    rows = spec.topology.max_tokens_per_rank if spec.tokens == DYNAMIC else int(spec.tokens)
    return plan_rows(
        target,
        row_bytes=4 * (2 * index_pitch(topk, spec.index_dtype) + index_pitch(topk, "int32")) + ranks,
        unstaged_row_bytes=4 * ranks,
        fixed_bytes=4 * (3 * ranks + padded(spec.topology.experts) + 2 * VECTOR_LANES) + SUM_BYTES,
        rows=rows,
        # Each index is compared with all experts and, in two walks, with all ranks, 64 at a time.
        passes=float(topk * (2 * ranks + padded(spec.topology.experts)) // VECTOR_LANES),
        what=f"a token's slots on {spec.topology.ranks} ranks",
        field="topology",
        given=spec.tile,
    )


def build(spec: EpLayoutSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: EpLayoutSpec) -> tuple[Parameter, ...]:
    """What a call takes: the experts of the tokens, this rank's number, and all that follows from them."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    one = spec.topology
    choices = (tokens, one.topk)

    def tensor(name: str, role: Any, dtype: str, *shape: Extent) -> Parameter:
        empty = shape[0] == "tokens"
        return Parameter(name=name, role=role, dtype=dtype, shape=shape, may_be_empty=empty)

    return (
        tensor("topk_idx", "in", spec.index_dtype, *choices),
        Parameter(name="rank", role="scalar", dtype="int32"),
        tensor("num_tokens_per_rank", "out", "int32", one.ranks),
        tensor("num_tokens_per_expert", "out", "int32", one.experts),
        tensor("is_token_in_rank", "out", "bool", tokens, one.ranks),
        tensor("dst_slot", "out", "int32", *choices),
        tensor("local_topk_idx", "out", spec.index_dtype, *choices),
        tensor("rank_counts", "out", "int32", PARTS, one.ranks),
        tensor("expert_counts", "out", "int32", PARTS, one.experts),
    )


def _program(spec: EpLayoutSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: counts by part, a barrier, then slots.

    Lane r of a register stands for rank r (or expert r): its lowest expert, and how often a token meets it.
    """
    import tilelang.ascend.language as T

    entry = Entry("ep_layout", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    one = spec.topology
    ranks, experts, topk, owned = one.ranks, one.experts, one.topk, one.experts_per_rank
    words, step = index_words(topk, spec.index_dtype), index_words(1, spec.index_dtype)
    rank_pitch, expert_pitch = padded(ranks), padded(experts)
    own = parts_per_core(cores)
    sums = sums_of_parts(event=SUM_EVENT)
    barrier = pass_barrier()

    def lanes() -> Any:
        return T.simd.vci(T.int32(0), "int32")

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, index_ub, begin = state[0], state[1], state[2]
        start = T.alloc_var("int32")
        start = begin[0] + first
        T.copy(
            looked_at(call.topk_idx, (tokens, words), "int32")[start : start + count, 0:words],
            index_ub[slot, 0:count, 0:words],
        )

    @T.macro
    def nothing(state: Any, slot: Any, first: Any, count: Any) -> None:
        pass

    @T.macro
    def meets(index_ub: Any, slot: Any, token: Any, lowest: Any, size: int) -> Any:
        """1 in the lanes one of whose ``size`` experts from ``lowest`` on the token chose."""
        hit = T.simd.alloc_var("int32")
        hit = T.simd.vdup(0, "int32")
        for k in T.serial(T.uint16(topk)):
            index = T.simd.vld(index_ub[slot, token, T.cast(k, "int32") * step], dist="BRC_B32")
            place = T.reinterpret(T.simd.vsub(index, lowest), "uint32x64")
            inside = T.simd.vcmps(place, T.uint32(size), op="lt")
            hit = T.simd.vsel(T.simd.vdup(1, "int32"), hit, inside)
        return hit

    @T.macro
    def clear(counts_ub: Any, vectors: int) -> None:
        with T.SimdVF():
            for i in T.serial(T.uint16(vectors)):
                T.simd.vsts(counts_ub[T.cast(i, "int32") * VECTOR_LANES], T.simd.vdup(0, "int32"))

    @T.macro
    def count_ranks(index_ub: Any, counts_ub: Any, slot: Any, count: Any) -> None:
        with T.SimdVF():
            total = T.simd.alloc_var("int32")
            for i in T.serial(T.uint16(rank_pitch // VECTOR_LANES)):
                at = T.cast(i, "int32") * VECTOR_LANES
                lowest = T.simd.vmuls(T.simd.vadds(lanes(), at), owned)
                total = T.simd.vld(counts_ub[at])
                for token in T.serial(T.cast(count, "uint16")):
                    total = T.simd.vadd(total, meets(index_ub, slot, T.cast(token, "int32"), lowest, owned))
                T.simd.vsts(counts_ub[at], total)

    @T.macro
    def count_experts(index_ub: Any, counts_ub: Any, slot: Any, count: Any) -> None:
        with T.SimdVF():
            total = T.simd.alloc_var("int32")
            for i in T.serial(T.uint16(expert_pitch // VECTOR_LANES)):
                at = T.cast(i, "int32") * VECTOR_LANES
                expert = T.simd.vadds(lanes(), at)
                total = T.simd.vld(counts_ub[at])
                for token in T.serial(T.cast(count, "uint16")):
                    for k in T.serial(T.uint16(topk)):
                        word = T.cast(k, "int32") * step
                        index = T.simd.vld(index_ub[slot, T.cast(token, "int32"), word], dist="BRC_B32")
                        same = T.simd.vcmp(index, expert, op="eq")
                        total = T.simd.vsel(T.simd.vadds(total, 1), total, same)
                T.simd.vsts(counts_ub[at], total)

    @T.macro
    def count(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, index_ub, _, rank_ub, expert_ub = state
        count_ranks(index_ub, rank_ub, slot, count)
        count_experts(index_ub, expert_ub, slot, count)

    @T.macro
    def place_tokens(
        index_ub: Any, next_ub: Any, row_ub: Any, found_ub: Any, slot: Any, count: Any, lowest_here: Any
    ) -> None:
        slot_ub, local_ub, in_rank_ub = found_ub
        with T.SimdVF():
            following = T.simd.alloc_var("int32")
            again = T.simd.alloc_var("int32")
            for i in T.serial(T.uint16(rank_pitch // VECTOR_LANES)):
                at = T.cast(i, "int32") * VECTOR_LANES
                lowest = T.simd.vmuls(T.simd.vadds(lanes(), at), owned)
                following = T.simd.vld(next_ub[0, at])
                for t in T.serial(T.cast(count, "uint16")):
                    token = T.cast(t, "int32")
                    hit = meets(index_ub, slot, token, lowest, owned)
                    T.simd.vsts(row_ub[token, at], following)
                    T.simd.vsts(in_rank_ub[slot, token, at], T.reinterpret(hit, "uint8x256"), dist="PK4_B32")
                    following = T.simd.vadd(following, hit)
                T.simd.vsts(next_ub[0, at], following)
            T.simd.mem_bar("VST_VLD")
            for t in T.serial(T.cast(count, "uint16")):
                token = T.cast(t, "int32")
                index = load_indices(index_ub, topk, experts, spec.index_dtype, slot, token, 0)
                known = T.simd.vcmps(index, 0, op="ge")
                # Half an expert to the right of every boundary: the rounding of 1 / owned cannot cross one.
                middle = T.simd.vadds(T.simd.vcvt(index, "float32"), 0.5)
                rank = T.simd.vcvt(T.simd.vmuls(middle, 1.0 / owned), "int32", round="ROUND_F")
                place = T.simd.vgather2(row_ub[token, 0], T.reinterpret(rank, "uint32x64"), known)
                again = T.simd.vdup(0, "int32")
                if topk > 1:
                    for k in T.serial(T.uint16(topk - 1)):
                        lane = T.simd.vdup(T.cast(k, "int32"), "int32")
                        other = T.reinterpret(T.simd.vselr(rank, lane), "int32x64")
                        behind = T.simd.vcmp(lanes(), lane, known, op="gt")
                        # An index of no expert divides to minus one, which is no rank.
                        same = T.simd.vcmp(rank, other, behind, op="eq")
                        again = T.simd.vsel(T.simd.vdup(1, "int32"), again, same)
                first = T.simd.vcmps(again, 0, known, op="eq")
                none = T.simd.vdup(-1, "int32")
                store_indices(slot_ub, T.simd.vsel(place, none, first), topk, "int32", slot, token, 0)
                local = T.simd.vsub(index, T.simd.vdup(lowest_here, "int32"))
                here = T.simd.vcmps(T.reinterpret(local, "uint32x64"), T.uint32(owned), known, op="lt")
                chosen = T.simd.vsel(local, none, here)
                store_indices(local_ub, chosen, topk, spec.index_dtype, slot, token, 0)

    @T.macro
    def place(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, index_ub, _, next_ub, row_ub, found_ub = state
        lowest_here = T.alloc_var("int32")
        lowest_here = call.rank * owned
        place_tokens(index_ub, next_ub, row_ub, found_ub, slot, count, lowest_here)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, _, begin, _, _, (slot_ub, local_ub, in_rank_ub) = state
        start = T.alloc_var("int32")
        start = begin[0] + first
        T.copy(slot_ub[slot, 0:count, 0:topk], call.dst_slot[start : start + count, 0:topk])
        T.copy(
            local_ub[slot, 0:count, 0:words],
            looked_at(call.local_topk_idx, (tokens, words), "int32")[start : start + count, 0:words],
        )
        T.copy(
            in_rank_ub[slot, 0:count, 0:ranks],
            looked_at(call.is_token_in_rank, (tokens, ranks), "uint8")[start : start + count, 0:ranks],
        )

    @T.macro
    def count_own_parts(call: Any, index_ub: Any, begin: Any, core: Any, used: Any, size: Any) -> None:
        """Counts of each part of this core, written to the workspace."""
        rank_ub = T.alloc_shared((rank_pitch,), "int32")
        expert_ub = T.alloc_shared((expert_pitch,), "int32")
        part = T.alloc_var("int32")
        length = T.alloc_var("int32")
        mine = T.alloc_var("int32")
        mine = T.max(T.min(own, used - core * own), 0)
        T.ascend_set_flag("MTE3_V", COUNT_EVENT)
        for index in T.serial(mine):
            part = core * own + index
            begin[0] = part * size
            length = T.min(size, tokens - begin[0])
            T.ascend_wait_flag("MTE3_V", COUNT_EVENT)
            clear(rank_ub, rank_pitch // VECTOR_LANES)
            clear(expert_ub, expert_pitch // VECTOR_LANES)
            row_pipeline(plan, 1, length, load=load, compute=count, store=nothing)(
                (call, index_ub, begin, rank_ub, expert_ub), 0
            )
            # No part is empty, so MTE3 has waited for V to count the last stage.
            T.copy(rank_ub[0:ranks], call.rank_counts[part, 0:ranks])
            T.copy(expert_ub[0:experts], call.expert_counts[part, 0:experts])
            T.ascend_set_flag("MTE3_V", COUNT_EVENT)
        T.ascend_wait_flag("MTE3_V", COUNT_EVENT)

    @T.macro
    def add_parts_up(call: Any, next_ub: Any, core: Any, used: Any) -> None:
        """This core's first slot on each rank, and its share of all totals."""
        part_ub = T.alloc_shared((PARTS, VECTOR_LANES), "int32")
        total_ub = T.alloc_shared((2, VECTOR_LANES), "int32")
        key = T.alloc_var("int32")
        width = T.alloc_var("int32")
        before = T.alloc_var("int32")
        turns = T.alloc_var("int32")
        none = T.alloc_var("int32")
        before = T.min(core * own, used)
        none = 0
        T.ascend_set_flag("V_MTE2", SUM_EVENT)
        for chunk in T.serial(rank_pitch // VECTOR_LANES):
            key = chunk * VECTOR_LANES
            width = T.min(VECTOR_LANES, ranks - key)
            sums(call.rank_counts, part_ub, next_ub, key, key, width, before, used)
        if core == 0:
            T.ascend_set_flag("V_MTE3", SUM_EVENT)
            T.ascend_wait_flag("V_MTE3", SUM_EVENT)
            T.copy(next_ub[1, 0:ranks], call.num_tokens_per_rank[0:ranks])
        turns = T.truncdiv(expert_pitch // VECTOR_LANES + cores - 1 - core, cores)
        T.ascend_set_flag("MTE3_V", SUM_EVENT)
        for turn in T.serial(turns):
            key = (turn * cores + core) * VECTOR_LANES
            width = T.min(VECTOR_LANES, experts - key)
            T.ascend_wait_flag("MTE3_V", SUM_EVENT)
            sums(call.expert_counts, part_ub, total_ub, 0, key, width, none, used)
            T.ascend_set_flag("V_MTE3", SUM_EVENT)
            T.ascend_wait_flag("V_MTE3", SUM_EVENT)
            T.copy(total_ub[1, 0:width], call.num_tokens_per_expert[key : key + width])
            T.ascend_set_flag("MTE3_V", SUM_EVENT)
        T.ascend_wait_flag("MTE3_V", SUM_EVENT)
        T.ascend_wait_flag("V_MTE2", SUM_EVENT)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            index_ub = T.alloc_shared((plan.stages, plan.rows, index_pitch(topk, spec.index_dtype)), "int32")
            next_ub = T.alloc_shared((2, rank_pitch), "int32")
            begin = T.alloc_local((1,), "int32")
            used = T.alloc_var("int32")
            size = T.alloc_var("int32")
            mine = T.alloc_var("int32")
            size = part_rows(tokens)
            used = T.truncdiv(tokens + size - 1, size)
            count_own_parts(call, index_ub, begin, core, used, size)
            barrier()
            add_parts_up(call, next_ub, core, used)
            row_ub = T.alloc_shared((plan.rows, rank_pitch), "int32")
            found_ub = (
                T.alloc_shared((plan.stages, plan.rows, index_pitch(topk, "int32")), "int32"),
                T.alloc_shared((plan.stages, plan.rows, index_pitch(topk, spec.index_dtype)), "int32"),
                T.alloc_shared((plan.stages, plan.rows, rank_pitch), "uint8"),
            )
            begin[0] = T.min(core * own * size, tokens)
            mine = T.min(own * size, tokens - begin[0])
            row_pipeline(plan, 1, mine, load=load, compute=place, store=store)(
                (call, index_ub, begin, next_ub, row_ub, found_ub), 0
            )

    return entry.prim_func(block)


FAMILY = Family(
    name="ep_layout",
    summary="which ranks each token goes to, and the slot its record takes there",
    spec_type=EpLayoutSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(
        *ROW_KERNEL_SOURCES,
        *EXPERT_PARALLEL_SOURCES,
        LANE_TOPK_SOURCE,
        PART_COUNTS_SOURCE,
    ),
    page=KernelPage(
        computes=(
            "Rank r owns the experts from `r * experts / ranks` on. A token goes to a rank if it chose one "
            "of that rank's experts, once, however many it chose there:\n\n"
            "    is_token_in_rank[t, r] = some k: topk_idx[t, k] is an expert of r\n"
            "    num_tokens_per_rank[r] = how many tokens go to r\n"
            "    num_tokens_per_expert[e] = how often e occurs in topk_idx\n"
            "    dst_slot[t, k] = how many tokens before t go to the same rank as choice k\n"
            "    local_topk_idx[t, k] = topk_idx[t, k] - rank * experts / ranks\n\n"
            "`dst_slot` is -1 where an earlier choice of the token goes to the same rank, so that one choice "
            "of each destination holds its slot. `local_topk_idx` is -1 for experts of other ranks. Choices "
            "of no expert, -1 above all, count nowhere and have -1 in both. Slots follow the tokens' order, "
            "so the same choices give the same slots in every run and on every part.\n\n"
            "*Topology.* One value describes a group of ranks for all five kernels of a dispatch and its "
            "combine: `ep_layout`, `ep_pack`, `ep_prefix`, `ep_expand` and `ep_combine`. Kernels depend on "
            "ranks, experts, topk, record slots and alignment. `nodes` and `group_cards` say which network a "
            "record takes: inside a super-node group (UBL128: up to 128 cards behind one stage of switches) "
            "or across two stages. They change no kernel, but travel with the spec to whoever sets up the "
            "network. Nothing here crosses cards: URMA writes, HCCL groups, registered memory and waiting "
            "for other cards are the network runtime's part.\n\n"
            "*Parts.* The tokens are cut into 128 parts of `ceil(tokens / 128)`. Each core counts some of "
            "them, writes the counts, passes a barrier of all vector cores and adds up those of the parts "
            "before its own."
        ),
        arguments={
            "topk_idx": (
                "row-major experts of each token, of all ranks; -1 stands for none; of an int64 the low word "
                "is looked at"
            ),
            "rank": "this rank's number",
            "num_tokens_per_rank": "tokens for each rank; what `ep_prefix` takes on the other side",
            "num_tokens_per_expert": "choices of each expert of all ranks",
            "is_token_in_rank": "row-major, one byte for each token and rank",
            "dst_slot": "row-major, the record slot on the rank of each choice",
            "local_topk_idx": "row-major, choices among this rank's own experts",
            "rank_counts": "workspace: tokens of each part for each rank; its old content does not matter",
            "expert_counts": "workspace: choices of each part by expert; its old content does not matter",
        },
        tolerance="exact",
        facts=(
            "github.com/deepseek-ai/DeepEP (V2.5) and its Ascend port, deep_ep/impls/ep/dispatch.hpp: a "
            "token takes one slot on each rank, held by one of its choices; there slots follow the order of "
            "arrival",
        ),
        serves=("deep_ep.EPBuffer.dispatch",),
        examples=(
            EpLayoutSpec(
                topology=ExpertParallelTopology(ranks=8, experts=256, topk=6, max_tokens_per_rank=4096)
            ),
            EpLayoutSpec(
                topology=ExpertParallelTopology(
                    ranks=128, experts=384, topk=8, max_tokens_per_rank=4096, nodes=16
                ),
                index_dtype="int32",
            ),
        ),
    ),
)
