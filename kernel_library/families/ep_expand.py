"""ep_expand: received records unpacked into rows by expert."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any

import msgspec

from kaas.kernel_library.entry import Entry, looked_at
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.expert_parallel import (
    EXPERT_PARALLEL_SOURCES,
    ExpertParallelTopology,
    Payload,
    PayloadDtype,
    RecordLayout,
    ScalePacks,
    record_layout,
    require_payload,
    require_topology,
)
from kaas.kernel_library.routing.index_batches import BLOCK_BYTES, INDEX_BYTES, index_pitch
from kaas.kernel_library.routing.part_counts import (
    PART_COUNTS_SOURCE,
    PARTS,
    SUM_BYTES,
    part_rows,
    parts_per_core,
    pass_barrier,
    sums_of_parts,
)
from kaas.kernel_library.spec import DYNAMIC, Dim, KernelSpec, require_bool, require_dim
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES
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

BLOCK_WORDS = BLOCK_BYTES // INDEX_BYTES
COUNT_ROWS = 64
"""Records whose experts one stage of the count holds."""
COUNT_STAGES = 2
ZERO_WORDS = 2048
PSUM_EVENT, COUNT_EVENT, SUM_EVENT, ZERO_EVENT = 4, 5, 6, 7


class EpExpandSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="ep_expand"):
    """Rows by expert from the records that all ranks have sent, on the vector cores.

    Arguments in call order: recv[ranks, max_tokens_per_rank, words] int32; rank, an int32 scalar, unless
    ``cached``; psum_num_recv_tokens_per_rank[ranks] and psum_num_recv_tokens_per_expert[experts_per_rank]
    int32; recv_x[expanded, hidden]; recv_x_scales[expanded, scale_packs] 16-bit words unless there are none;
    recv_topk_weights[expanded] fp32 if ``weights``; recv_src_metadata[received, topk + 2] int32, written, or
    read if ``cached``; expert_counts[128, experts_per_rank] int32, a workspace, unless ``cached``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    topology: ExpertParallelTopology
    hidden: Payload
    dtype: PayloadDtype = "bf16"
    scale_packs: ScalePacks = 0
    weights: bool = True
    cached: bool = False
    zero_padding: bool = False
    received: Dim = "dynamic"
    expanded: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_topology(self.topology)
        require_payload(self.hidden, self.dtype, self.scale_packs)
        for name in ("weights", "cached", "zero_padding"):
            require_bool(getattr(self, name), name)
        require_dim(self.received, "received", self.topology.slots)
        require_dim(self.expanded, "expanded")
        require_row_tile(self.tile)

    @property
    def record(self) -> RecordLayout:
        """Where the parts of a record lie."""
        return record_layout(
            hidden=self.hidden,
            dtype=self.dtype,
            scale_packs=self.scale_packs,
            topk=self.topology.topk,
            weights=self.weights,
            cached=self.cached,
        )

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a record does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: EpExpandSpec, target: Target) -> RowPlan:
    """The plan of stages of records, with their metadata and a block for each weight."""
    one = spec.topology
    row = 4 * (spec.record.words + _metadata_pitch(spec)) + one.topk * BLOCK_BYTES * spec.weights
    fixed = 4 * (_shifted(one.ranks) + _shifted(one.experts_per_rank))
    if spec.zero_padding:
        fixed += 4 * ZERO_WORDS
    if not spec.cached:
        indices = COUNT_STAGES * COUNT_ROWS * index_pitch(one.topk)
        fixed += SUM_BYTES + 4 * (indices + 3 * padded(one.experts_per_rank))
    return plan_rows(
        target,
        row_bytes=row,
        fixed_bytes=fixed,
        rows=one.slots if spec.received == DYNAMIC else int(spec.received),
        passes=0.0,
        what=f"a record of {spec.hidden} {spec.dtype}",
        given=spec.tile,
    )


def _shifted(count: int) -> int:
    """int32 words of a buffer of ``count`` numbers with a zero before them, read in whole registers."""
    return padded(count + BLOCK_WORDS)


def _metadata_pitch(spec: EpExpandSpec) -> int:
    return index_pitch(spec.topology.topk + (0 if spec.cached else 2))


def build(spec: EpExpandSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a record does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(record_words=spec.record.words),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: EpExpandSpec) -> tuple[Parameter, ...]:
    """What a call takes: records and sums, rows by expert, metadata, and a workspace."""
    one = spec.topology
    received: Extent = "received" if spec.received == DYNAMIC else spec.received
    expanded: Extent = "expanded" if spec.expanded == DYNAMIC else spec.expanded

    def tensor(name: str, role: Any, dtype: str, *shape: Extent) -> Parameter:
        empty = shape[0] in ("received", "expanded")
        return Parameter(name=name, role=role, dtype=dtype, shape=shape, may_be_empty=empty)

    taken = [tensor("recv", "in", "int32", one.ranks, one.max_tokens_per_rank, spec.record.words)]
    if not spec.cached:
        taken.append(Parameter(name="rank", role="scalar", dtype="int32"))
    taken += [
        tensor("psum_num_recv_tokens_per_rank", "in", "int32", one.ranks),
        tensor("psum_num_recv_tokens_per_expert", "in", "int32", one.experts_per_rank),
        tensor("recv_x", "out", spec.dtype, expanded, spec.hidden),
    ]
    if spec.scale_packs:
        taken.append(tensor("recv_x_scales", "out", "e8m0x2", expanded, spec.scale_packs))
    if spec.weights:
        taken.append(tensor("recv_topk_weights", "out", "fp32", expanded))
    role = "in" if spec.cached else "out"
    taken.append(tensor("recv_src_metadata", role, "int32", received, one.topk + 2))
    if not spec.cached:
        taken.append(tensor("expert_counts", "out", "int32", PARTS, one.experts_per_rank))
    return tuple(taken)


class _Buffers(msgspec.Struct, frozen=True):
    """The call and the UB of a block; ``ranks`` and ``ends`` have a zero before their first number."""

    call: Any
    ranks: Any
    ends: Any
    turn: Any
    record: Any = None
    metadata: Any = None
    weight: Any = None
    index: Any = None
    counts: Any = None
    following: Any = None


def _program(spec: EpExpandSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: counts by part, a barrier, then every record to its rows.

    The scalar pipe hands out the rows, since each record's transfers wait for them; a core's first row of
    each expert is known from the counts of the parts before its own.
    """
    import tilelang.ascend.language as T

    entry = Entry("ep_expand", parameters(spec))
    received = entry.extent("received" if spec.received == DYNAMIC else spec.received)
    expanded = entry.extent("expanded" if spec.expanded == DYNAMIC else spec.expanded)
    one, record = spec.topology, spec.record
    ranks, owned, topk, slots = one.ranks, one.experts_per_rank, one.topk, one.slots
    packs, stages, most = spec.scale_packs, plan.stages, plan.rows
    payload, alignment = record.payload_words, one.expert_alignment
    own, vectors = parts_per_core(cores), padded(owned) // VECTOR_LANES
    metadata_pitch = _metadata_pitch(spec)
    has_scalar_work = spec.weights or not spec.cached
    sums, barrier = sums_of_parts(event=SUM_EVENT), pass_barrier()

    def lanes() -> Any:
        return T.simd.vci(T.int32(0), "int32")

    def visit_range(rows: int, work: Any) -> Any:
        """A macro ``(buffers, begin, end)``: runs of received records, none from two ranks."""

        @T.macro
        def run(buffers: Any, begin: Any, end: Any) -> None:
            first = T.alloc_var("int32")
            origin = T.alloc_var("int32")
            steps = T.alloc_var("int32")
            count = T.alloc_var("int32")
            start = T.alloc_var("int32")
            for rank in T.serial(ranks):
                origin = buffers.ranks[BLOCK_WORDS - 1 + rank]
                first = T.max(begin, origin)
                count = T.min(end, buffers.ranks[BLOCK_WORDS + rank]) - first
                steps = T.truncdiv(T.max(count, 0) + rows - 1, rows)
                for step in T.serial(steps):
                    start = first + step * rows
                    work(
                        buffers,
                        rank * one.max_tokens_per_rank + start - origin,
                        start,
                        T.min(rows, count - step * rows),
                    )

        return run

    @T.macro
    def count_stage(index_ub: Any, counts_ub: Any, slot: Any, count: Any, lowest: Any) -> None:
        with T.SimdVF():
            total = T.simd.alloc_var("int32")
            for i in T.serial(T.uint16(vectors)):
                at = T.cast(i, "int32") * VECTOR_LANES
                expert = T.simd.vadds(lanes(), lowest + at)
                total = T.simd.vld(counts_ub[at])
                for row in T.serial(T.cast(count, "uint16")):
                    for k in T.serial(T.uint16(topk)):
                        index = T.simd.vld(
                            index_ub[slot, T.cast(row, "int32"), T.cast(k, "int32")], dist="BRC_B32"
                        )
                        same = T.simd.vcmp(index, expert, op="eq")
                        total = T.simd.vsel(T.simd.vadds(total, 1), total, same)
                T.simd.vsts(counts_ub[at], total)

    @T.macro
    def count_records(buffers: Any, source: Any, start: Any, count: Any) -> None:
        lowest = T.alloc_var("int32")
        slot = buffers.turn[0] % COUNT_STAGES
        lowest = buffers.call.rank * owned
        T.ascend_wait_flag("V_MTE2", slot)
        T.copy(
            looked_at(buffers.call.recv, (slots, record.words), "int32")[
                source : source + count, record.experts : record.experts + topk
            ],
            buffers.index[slot, 0:count, 0:topk],
        )
        T.ascend_set_flag("MTE2_V", slot)
        T.ascend_wait_flag("MTE2_V", slot)
        count_stage(buffers.index, buffers.counts, slot, count, lowest)
        T.ascend_set_flag("V_MTE2", slot)
        buffers.turn[0] = buffers.turn[0] + 1

    @T.macro
    def clear(buffer: Any, count: int) -> None:
        with T.SimdVF():
            for i in T.serial(T.uint16(count)):
                T.simd.vsts(buffer[T.cast(i, "int32") * VECTOR_LANES], T.simd.vdup(0, "int32"))

    @T.macro
    def count_own_parts(buffers: Any, core: Any, total: Any, used: Any, size: Any) -> None:
        """Counts of each part of this core, written to the workspace."""
        part = T.alloc_var("int32")
        mine = T.alloc_var("int32")
        mine = T.max(T.min(own, used - core * own), 0)
        buffers.turn[0] = 0
        T.ascend_set_flag("MTE3_V", COUNT_EVENT)
        for slot in T.serial(COUNT_STAGES):
            T.ascend_set_flag("V_MTE2", slot)
        for index in T.serial(mine):
            part = core * own + index
            T.ascend_wait_flag("MTE3_V", COUNT_EVENT)
            clear(buffers.counts, vectors)
            visit_range(COUNT_ROWS, count_records)(buffers, part * size, T.min((part + 1) * size, total))
            T.ascend_set_flag("V_MTE3", COUNT_EVENT)
            T.ascend_wait_flag("V_MTE3", COUNT_EVENT)
            T.copy(buffers.counts[0:owned], buffers.call.expert_counts[part, 0:owned])
            T.ascend_set_flag("MTE3_V", COUNT_EVENT)
        T.ascend_wait_flag("MTE3_V", COUNT_EVENT)
        for slot in T.serial(COUNT_STAGES):
            T.ascend_wait_flag("V_MTE2", slot)

    @T.macro
    def add_starts(ends_ub: Any, following_ub: Any) -> None:
        """From records before this core's to the first row that each expert's next one takes."""
        with T.SimdVF():
            for i in T.serial(T.uint16(vectors)):
                at = T.cast(i, "int32") * VECTOR_LANES
                places = T.simd.vadds(lanes(), at + BLOCK_WORDS - 1)
                inside = T.simd.vcmps(T.simd.vadds(lanes(), at), owned, op="lt")
                before = T.simd.vgather2(ends_ub[0], T.reinterpret(places, "uint32x64"), inside)
                raised = T.simd.vadds(before, alignment - 1)
                start = T.simd.vand(raised, T.simd.vnot(T.simd.vdup(alignment - 1, "int32")))
                T.simd.vsts(following_ub[0, at], T.simd.vadd(start, T.simd.vld(following_ub[0, at])))

    @T.macro
    def find_first_rows(buffers: Any, core: Any, used: Any) -> None:
        part_ub = T.alloc_shared((PARTS, VECTOR_LANES), "int32")
        key = T.alloc_var("int32")
        width = T.alloc_var("int32")
        before = T.alloc_var("int32")
        before = T.min(core * own, used)
        T.ascend_set_flag("V_MTE2", SUM_EVENT)
        for chunk in T.serial(vectors):
            key = chunk * VECTOR_LANES
            width = T.min(VECTOR_LANES, owned - key)
            sums(buffers.call.expert_counts, part_ub, buffers.following, key, key, width, before, used)
        T.ascend_wait_flag("V_MTE2", SUM_EVENT)
        add_starts(buffers.ends, buffers.following)
        T.ascend_set_flag("V_S", SUM_EVENT)
        T.ascend_wait_flag("V_S", SUM_EVENT)

    @T.macro
    def assign_rows(buffers: Any, slot: Any, count: Any) -> None:
        """The row of every choice, for the record's metadata; its weight in a block of its own."""
        expert = T.alloc_var("int32")
        row = T.alloc_var("int32")
        last = T.alloc_var("int32")
        for i in T.serial(count):
            last = -1
            for k in T.serial(topk):
                if not spec.cached:
                    row = -1
                    expert = buffers.record[slot, i, record.experts + k] - buffers.call.rank * owned
                    if expert >= 0 and expert < owned:
                        row = buffers.following[0, expert]
                        buffers.following[0, expert] = row + 1
                        last = k
                    buffers.metadata[slot, i, k] = row
                if spec.weights:
                    buffers.weight[slot, i, k, 0] = buffers.record[slot, i, record.weights + k]
            if not spec.cached:
                buffers.metadata[slot, i, topk] = buffers.record[slot, i, record.source]
                buffers.metadata[slot, i, topk + 1] = last

    @T.macro
    def copy_rows(buffers: Any, slot: Any, count: Any) -> None:
        row = T.alloc_var("int32")
        halves = T.view(buffers.record, (stages, most, 2 * record.words), "uint16")
        for i in T.serial(count):
            for k in T.serial(topk):
                row = buffers.metadata[slot, i, k]
                if row >= 0 and row < expanded:
                    T.copy(
                        buffers.record[slot, i, 0:payload],
                        looked_at(buffers.call.recv_x, (expanded, payload), "int32")[row, 0:payload],
                    )
                    if packs:
                        T.copy(
                            halves[slot, i, 2 * record.scales : 2 * record.scales + packs],
                            buffers.call.recv_x_scales[row, 0:packs],
                        )
                    if spec.weights:
                        T.copy(
                            buffers.weight[slot, i, k, 0:1],
                            looked_at(buffers.call.recv_topk_weights, (expanded, 1), "int32")[row, 0:1],
                        )

    @T.macro
    def expand_records(buffers: Any, source: Any, start: Any, count: Any) -> None:
        slot = buffers.turn[0] % stages
        # MTE3 has waited for the scalar pipe, but not for its reads of rows that were loaded.
        T.ascend_wait_flag("MTE3_MTE2", slot)
        if spec.cached:
            T.ascend_wait_flag("S_MTE2", slot)
        T.copy(
            looked_at(buffers.call.recv, (slots, record.words), "int32")[
                source : source + count, 0 : record.words
            ],
            buffers.record[slot, 0:count, 0 : record.words],
        )
        if spec.cached:
            T.copy(
                buffers.call.recv_src_metadata[start : start + count, 0:topk],
                buffers.metadata[slot, 0:count, 0:topk],
            )
        T.ascend_set_flag("MTE2_S", slot)
        T.ascend_wait_flag("MTE2_S", slot)
        if has_scalar_work:
            assign_rows(buffers, slot, count)
            T.ascend_set_flag("S_MTE3", slot)
            T.ascend_wait_flag("S_MTE3", slot)
        copy_rows(buffers, slot, count)
        if not spec.cached:
            T.copy(
                buffers.metadata[slot, 0:count, 0 : topk + 2],
                buffers.call.recv_src_metadata[start : start + count, 0 : topk + 2],
            )
        if spec.cached:
            T.ascend_set_flag("S_MTE2", slot)
        T.ascend_set_flag("MTE3_MTE2", slot)
        buffers.turn[0] = buffers.turn[0] + 1

    @T.macro
    def expand(buffers: Any, begin: Any, end: Any) -> None:
        buffers.turn[0] = 0
        for slot in T.serial(stages):
            T.ascend_set_flag("MTE3_MTE2", slot)
            if spec.cached:
                T.ascend_set_flag("S_MTE2", slot)
        visit_range(most, expand_records)(buffers, begin, end)
        for slot in T.serial(stages):
            T.ascend_wait_flag("MTE3_MTE2", slot)
            if spec.cached:
                T.ascend_wait_flag("S_MTE2", slot)

    @T.macro
    def zero_row(call: Any, zero_ub: Any, row: Any) -> None:
        for chunk in T.serial(-(-payload // ZERO_WORDS)):
            length = T.min(ZERO_WORDS, payload - chunk * ZERO_WORDS)
            T.copy(
                zero_ub[0:length],
                looked_at(call.recv_x, (expanded, payload), "int32")[
                    row, chunk * ZERO_WORDS : chunk * ZERO_WORDS + length
                ],
            )
        if packs:
            T.copy(T.view(zero_ub, (2 * ZERO_WORDS,), "uint16")[0:packs], call.recv_x_scales[row, 0:packs])
        if spec.weights:
            T.copy(zero_ub[0:1], looked_at(call.recv_topk_weights, (expanded, 1), "int32")[row, 0:1])

    @T.macro
    def zero_padding(buffers: Any, core: Any) -> None:
        """Zeros from each expert's last row to the next one's first; the cores take the rows in turn."""
        zero_ub = T.alloc_shared((ZERO_WORDS,), "int32")
        first = T.alloc_var("int32")
        end = T.alloc_var("int32")
        count = T.alloc_var("int32")
        clear(zero_ub, ZERO_WORDS // VECTOR_LANES)
        T.ascend_set_flag("V_MTE3", ZERO_EVENT)
        T.ascend_wait_flag("V_MTE3", ZERO_EVENT)
        for expert in T.serial(owned):
            first = buffers.ends[BLOCK_WORDS + expert]
            end = T.min(T.truncdiv(first + alignment - 1, alignment) * alignment, expanded)
            first = first + T.truncmod(core + expert, cores)
            count = T.truncdiv(T.max(end - first, 0) + cores - 1, cores)
            for i in T.serial(count):
                zero_row(buffers.call, zero_ub, first + i * cores)

    def allocate(call: Any) -> _Buffers:
        more: dict[str, Any] = {}
        if spec.weights:
            more["weight"] = T.alloc_shared((stages, most, topk, BLOCK_WORDS), "int32")
        if not spec.cached:
            more["index"] = T.alloc_shared((COUNT_STAGES, COUNT_ROWS, index_pitch(topk)), "int32")
            more["counts"] = T.alloc_shared((padded(owned),), "int32")
            more["following"] = T.alloc_shared((2, padded(owned)), "int32")
        return _Buffers(
            call=call,
            ranks=T.alloc_shared((_shifted(ranks),), "int32"),
            ends=T.alloc_shared((_shifted(owned),), "int32"),
            turn=T.alloc_local((1,), "int32"),
            record=T.alloc_shared((stages, most, record.words), "int32"),
            metadata=T.alloc_shared((stages, most, metadata_pitch), "int32"),
            **more,
        )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            buffers = allocate(call)
            total = T.alloc_var("int32")
            used = T.alloc_var("int32")
            size = T.alloc_var("int32")
            T.copy(
                call.psum_num_recv_tokens_per_rank[0:ranks],
                buffers.ranks[BLOCK_WORDS : BLOCK_WORDS + ranks],
            )
            T.copy(
                call.psum_num_recv_tokens_per_expert[0:owned], buffers.ends[BLOCK_WORDS : BLOCK_WORDS + owned]
            )
            buffers.ranks[BLOCK_WORDS - 1] = 0
            buffers.ends[BLOCK_WORDS - 1] = 0
            T.ascend_set_flag("MTE2_S", PSUM_EVENT)
            T.ascend_wait_flag("MTE2_S", PSUM_EVENT)
            total = T.max(T.min(buffers.ranks[BLOCK_WORDS - 1 + ranks], received), 0)
            size = part_rows(total)
            used = T.truncdiv(total + size - 1, size)
            if not spec.cached:
                T.ascend_set_flag("S_V", PSUM_EVENT)
                T.ascend_wait_flag("S_V", PSUM_EVENT)
                count_own_parts(buffers, core, total, used, size)
                barrier()
                find_first_rows(buffers, core, used)
            expand(buffers, T.min(core * own * size, total), T.min((core + 1) * own * size, total))
            if spec.zero_padding:
                zero_padding(buffers, core)

    return entry.prim_func(block)


FAMILY = Family(
    name="ep_expand",
    summary="received records unpacked into rows by expert, with where each came from",
    spec_type=EpExpandSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, *EXPERT_PARALLEL_SOURCES, PART_COUNTS_SOURCE),
    page=KernelPage(
        computes=(
            "Rank r has filled the first slots of `recv[r]` with records (`ep_pack` says what one is); "
            "`ep_prefix` says how many. Taken rank by rank and slot by slot they are the received tokens i. "
            "Every choice of an expert of this rank gets a row of its own, in that order:\n\n"
            "    row = roundup(psum_num_recv_tokens_per_expert[e - 1], expert_alignment)\n"
            "          + how many choices of e come before this one\n"
            "    recv_x[row], recv_x_scales[row] = the record's payload and scales\n"
            "    recv_topk_weights[row] = the weight of the choice\n"
            "    recv_src_metadata[i] = the row of each choice or -1, the record's source,\n"
            "                           the last choice that has a row\n\n"
            "With `zero_padding` the rows from an expert's last one up to the next multiple of "
            "`expert_alignment` become zero, scales and weights included; else they keep what they hold. "
            "With `cached` the rows are read from the metadata of an earlier dispatch with the same routing, "
            "and records without experts and source suffice. Rows at or behind `expanded` are not written, "
            "and records at or behind `received` are not looked at.\n\n"
            "Rows follow the order of the tokens, so the same routing gives the same rows in every run and "
            "on every part. The records are cut into 128 parts; each core counts the experts in some of "
            "them, passes a barrier of all vector cores and adds up the counts of the parts before its own. "
            "Filling `recv` and waiting until it is full is the network's part."
        ),
        arguments={
            "recv": "record slots by sending rank",
            "rank": "this rank's number",
            "psum_num_recv_tokens_per_rank": "inclusive sums of received tokens",
            "psum_num_recv_tokens_per_expert": "the row behind each expert's last one",
            "recv_x": "rows by expert, the layout of `grouped_gemm` when `expert_alignment` is 256",
            "recv_x_scales": "16-bit words of scales by row, row-major",
            "recv_topk_weights": "a weight for each row, as `swiglu` takes them",
            "recv_src_metadata": "row-major, a row for each received token",
            "expert_counts": "workspace: choices of each part by expert; its old content does not matter",
        },
        tolerance="bit-exact",
        facts=(
            "the Ascend port of DeepEP, deep_ep/impls/ep/dispatch_copy_epilogue.hpp: rows, metadata columns, "
            "zero padding and cached mode of its expanded layout",
        ),
        serves=("deep_ep.EPBuffer.dispatch",),
        examples=(
            EpExpandSpec(
                topology=ExpertParallelTopology(ranks=8, experts=256, topk=6, max_tokens_per_rank=4096),
                hidden=7168,
                zero_padding=True,
            ),
            EpExpandSpec(
                topology=ExpertParallelTopology(ranks=32, experts=256, topk=8, max_tokens_per_rank=4096),
                hidden=7168,
                dtype="e4m3",
                scale_packs=112,
            ),
            EpExpandSpec(
                topology=ExpertParallelTopology(ranks=8, experts=256, topk=6, max_tokens_per_rank=4096),
                hidden=7168,
                cached=True,
            ),
        ),
    ),
)
