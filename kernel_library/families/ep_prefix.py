"""ep_prefix: from how many tokens a rank receives to where they lie, by rank and by expert."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any

from kaas.kernel_library.choice import Candidate, report
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.expert_parallel import (
    EXPERT_PARALLEL_SOURCES,
    ExpertParallelTopology,
    require_topology,
)
from kaas.kernel_library.routing.lane_sums import LANE_SUMS_SOURCE, last_lane, running_sums
from kaas.kernel_library.spec import KernelSpec, require_bool
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES
from kaas.kernel_library.vector.row_plan import (
    DMA_BYTES_PER_CYCLE,
    STAGE_OVERHEAD_CYCLES,
    VECTOR_LANES,
    padded,
)
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

RANK_EVENT, EXPERT_EVENT = 0, 1


class EpPrefixSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="ep_prefix"):
    """Prefix sums of what a rank receives, int32 throughout, on one vector core.

    Arguments in call order: recv_tokens_per_rank[ranks] and recv_tokens_per_expert[ranks, experts_per_rank],
    what every rank says that it sends here; psum_num_recv_tokens_per_rank[ranks];
    psum_num_recv_tokens_per_expert and num_unaligned_recv_tokens_per_expert [experts_per_rank];
    cumulative_local_expert_recv_stats[experts_per_rank], added to, if ``stats``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    topology: ExpertParallelTopology
    stats: bool = False

    def __post_init__(self) -> None:
        require_topology(self.topology)
        require_bool(self.stats, "stats")


def parameters(spec: EpPrefixSpec) -> tuple[Parameter, ...]:
    """What a call takes: counts by rank and expert, their sums, and the running statistics."""
    ranks, experts = spec.topology.ranks, spec.topology.experts_per_rank

    def counts(name: str, role: Any, *shape: int) -> Parameter:
        return Parameter(name=name, role=role, dtype="int32", shape=shape)

    taken = (
        counts("recv_tokens_per_rank", "in", ranks),
        counts("recv_tokens_per_expert", "in", ranks, experts),
        counts("psum_num_recv_tokens_per_rank", "out", ranks),
        counts("psum_num_recv_tokens_per_expert", "out", experts),
        counts("num_unaligned_recv_tokens_per_expert", "out", experts),
    )
    return (*taken, counts("cumulative_local_expert_recv_stats", "inout", experts)) if spec.stats else taken


def build(spec: EpPrefixSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``: counts of all ranks for 64 experts at a time fit every UB."""
    moved = 4 * spec.topology.ranks * (spec.topology.experts_per_rank + 2)
    chunks = -(-spec.topology.experts_per_rank // VECTOR_LANES)
    tiles = {"experts": VECTOR_LANES, "turns": chunks}
    cycles = (1 + chunks) * STAGE_OVERHEAD_CYCLES + moved / DMA_BYTES_PER_CYCLE
    only = Candidate(tiles=tiles, cycles=cycles, bound="latency")
    return BuiltKernel(
        prim_func=_program(spec, target.vector_cores),
        choices={**tiles, "why": report(only, [only], [], given=False)},
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: EpPrefixSpec, cores: int) -> Any:
    """The TileLang function of ``spec``: a few kilobytes, so that one core does it all."""
    import tilelang.ascend.language as T

    entry = Entry("ep_prefix", parameters(spec))
    ranks, experts = spec.topology.ranks, spec.topology.experts_per_rank
    rank_vectors, chunks = padded(ranks) // VECTOR_LANES, -(-experts // VECTOR_LANES)
    low_bits = spec.topology.expert_alignment - 1
    add_up = running_sums()
    # Who writes over results that are being stored: the load of the next statistics, or their sum.
    stored = "MTE3_MTE2" if spec.stats else "MTE3_V"

    @T.macro
    def sum_ranks(rank_ub: Any) -> None:
        with T.SimdVF():
            before = T.simd.alloc_var("int32")
            before = T.simd.vdup(0, "int32")
            for i in T.serial(T.uint16(rank_vectors)):
                at = T.cast(i, "int32") * VECTOR_LANES
                sums = T.simd.vadd(before, add_up(T.simd.vld(rank_ub[0, at])))
                T.simd.vsts(rank_ub[1, at], sums)
                before = last_lane(sums)

    @T.macro
    def clear(carry_ub: Any) -> None:
        with T.SimdVF():
            T.simd.vsts(carry_ub[0], T.simd.vdup(0, "int32"))

    @T.macro
    def sum_experts(counts_ub: Any, carry_ub: Any, result_ub: Any) -> None:
        with T.SimdVF():
            count = T.simd.alloc_var("int32")
            count = T.simd.vdup(0, "int32")
            for rank in T.serial(T.uint16(ranks)):
                count = T.simd.vadd(count, T.simd.vld(counts_ub[T.cast(rank, "int32"), 0]))
            raised = T.simd.vadds(count, low_bits)
            size = T.simd.vand(raised, T.simd.vnot(T.simd.vdup(low_bits, "int32")))
            ends = T.simd.vadd(T.simd.vld(carry_ub[0]), add_up(size))
            T.simd.vsts(carry_ub[0], last_lane(ends))
            T.simd.vsts(result_ub[0, 0], T.simd.vadd(T.simd.vsub(ends, size), count))
            T.simd.vsts(result_ub[1, 0], count)
            if spec.stats:
                T.simd.vsts(result_ub[2, 0], T.simd.vadd(T.simd.vld(result_ub[2, 0]), count))

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            rank_ub = T.alloc_shared((2, padded(ranks)), "int32")
            counts_ub = T.alloc_shared((ranks, VECTOR_LANES), "int32")
            carry_ub = T.alloc_shared((VECTOR_LANES,), "int32")
            result_ub = T.alloc_shared((3, VECTOR_LANES), "int32")
            first = T.alloc_var("int32")
            width = T.alloc_var("int32")
            if core == 0:
                T.copy(call.recv_tokens_per_rank[0:ranks], rank_ub[0, 0:ranks])
                T.ascend_set_flag("MTE2_V", RANK_EVENT)
                T.ascend_wait_flag("MTE2_V", RANK_EVENT)
                sum_ranks(rank_ub)
                T.ascend_set_flag("V_MTE3", RANK_EVENT)
                T.ascend_wait_flag("V_MTE3", RANK_EVENT)
                T.copy(rank_ub[1, 0:ranks], call.psum_num_recv_tokens_per_rank[0:ranks])
                clear(carry_ub)
                T.ascend_set_flag("V_MTE2", EXPERT_EVENT)
                T.ascend_set_flag(stored, EXPERT_EVENT)
                for chunk in T.serial(chunks):
                    first = chunk * VECTOR_LANES
                    width = T.min(VECTOR_LANES, experts - first)
                    T.ascend_wait_flag("V_MTE2", EXPERT_EVENT)
                    T.copy(
                        call.recv_tokens_per_expert[0:ranks, first : first + width],
                        counts_ub[0:ranks, 0:width],
                    )
                    if spec.stats:
                        T.ascend_wait_flag(stored, EXPERT_EVENT)
                        T.copy(
                            call.cumulative_local_expert_recv_stats[first : first + width],
                            result_ub[2, 0:width],
                        )
                    T.ascend_set_flag("MTE2_V", EXPERT_EVENT)
                    T.ascend_wait_flag("MTE2_V", EXPERT_EVENT)
                    if not spec.stats:
                        T.ascend_wait_flag(stored, EXPERT_EVENT)
                    sum_experts(counts_ub, carry_ub, result_ub)
                    T.ascend_set_flag("V_MTE2", EXPERT_EVENT)
                    T.ascend_set_flag("V_MTE3", EXPERT_EVENT)
                    T.ascend_wait_flag("V_MTE3", EXPERT_EVENT)
                    T.copy(result_ub[0, 0:width], call.psum_num_recv_tokens_per_expert[first : first + width])
                    T.copy(
                        result_ub[1, 0:width],
                        call.num_unaligned_recv_tokens_per_expert[first : first + width],
                    )
                    if spec.stats:
                        T.copy(
                            result_ub[2, 0:width],
                            call.cumulative_local_expert_recv_stats[first : first + width],
                        )
                    T.ascend_set_flag(stored, EXPERT_EVENT)
                T.ascend_wait_flag("V_MTE2", EXPERT_EVENT)
                T.ascend_wait_flag(stored, EXPERT_EVENT)

    return entry.prim_func(block)


_EXAMPLE = ExpertParallelTopology(ranks=8, experts=256, topk=6, max_tokens_per_rank=4096)

FAMILY = Family(
    name="ep_prefix",
    summary="where the tokens that a rank receives lie, by sending rank and by expert",
    spec_type=EpPrefixSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, *EXPERT_PARALLEL_SOURCES, LANE_SUMS_SOURCE),
    page=KernelPage(
        computes=(
            "Every rank tells this one how many tokens it sends, in all and for each expert here; both are "
            "what `ep_layout` counted there. Then\n\n"
            "    psum_num_recv_tokens_per_rank[r] = recv_tokens_per_rank[0] + ... + recv_tokens_per_rank[r]\n"
            "    count[e] = sum over r of recv_tokens_per_expert[r, e]\n"
            "    psum_num_recv_tokens_per_expert[e] =\n"
            "        roundup(psum_num_recv_tokens_per_expert[e - 1], expert_alignment) + count[e]\n\n"
            "with 0 before the first expert. Expert e's rows are those from the rounded-up end of the one "
            "before it to its own sum: the layout that `grouped_gemm` and `swiglu` take. With `stats` the "
            "counts are added to running statistics. Bringing the counts here is the network's part."
        ),
        arguments={
            "recv_tokens_per_rank": "tokens that each rank sends here, each counted once",
            "recv_tokens_per_expert": "choices of each expert of this rank among them",
            "psum_num_recv_tokens_per_rank": "inclusive sums by rank",
            "psum_num_recv_tokens_per_expert": "the row behind each expert's last one",
            "num_unaligned_recv_tokens_per_expert": "rows of each expert, padding not counted",
            "cumulative_local_expert_recv_stats": "statistics of earlier dispatches, added to",
        },
        tolerance="exact",
        facts=(
            "github.com/deepseek-ai/DeepEP (V2.5) and its Ascend port, deep_ep/impls/ep/dispatch.hpp: both "
            "sums and the statistics",
        ),
        serves=("deep_ep.EPBuffer.dispatch",),
        examples=(
            EpPrefixSpec(topology=_EXAMPLE),
            EpPrefixSpec(
                topology=ExpertParallelTopology(
                    ranks=128, experts=384, topk=8, max_tokens_per_rank=4096, nodes=16
                ),
                stats=True,
            ),
        ),
    ),
)
