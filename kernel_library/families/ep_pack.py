"""ep_pack: one record per token and destination, in the slots from which the network takes them."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any

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
from kaas.kernel_library.routing.lane_topk import (
    INDEX_DTYPES,
    LANE_TOPK_SOURCE,
    IndexDtype,
    index_pitch,
    index_words,
    load_indices,
)
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    KernelSpec,
    require_bool,
    require_dim,
    require_one_of,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import RowPlan, RowTile, plan_rows, require_row_tile
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

BLOCK_WORDS = 8
"""int32 words of a 32-byte block."""


class EpPackSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="ep_pack"):
    """Records of tokens in the send slots of their destinations, on the vector cores.

    Arguments in call order: x[tokens, hidden]; x_scales[tokens, scale_packs] 16-bit words unless there are
    none; topk_idx[tokens, topk] of ``index_dtype``; topk_weights[tokens, topk] fp32 if ``weights``;
    dst_slot[tokens, topk] int32; rank, an int32 scalar; send[ranks, max_tokens_per_rank, words] int32. A
    ``cached`` record carries neither experts nor source: the receiver has them from an earlier dispatch.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    topology: ExpertParallelTopology
    hidden: Payload
    dtype: PayloadDtype = "bf16"
    scale_packs: ScalePacks = 0
    weights: bool = True
    cached: bool = False
    index_dtype: IndexDtype = "int64"
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_topology(self.topology)
        require_payload(self.hidden, self.dtype, self.scale_packs)
        require_bool(self.weights, "weights")
        require_bool(self.cached, "cached")
        require_one_of(self.index_dtype, "index_dtype", INDEX_DTYPES)
        require_dim(self.tokens, "tokens", self.topology.max_tokens_per_rank)
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


def plan_of(spec: EpPackSpec, target: Target) -> RowPlan:
    """The plan of stages of records, with the experts and slots of their tokens."""
    topk = spec.topology.topk
    indices = index_pitch(topk, spec.index_dtype) + index_pitch(topk, "int32")
    return plan_rows(
        target,
        row_bytes=4 * (spec.record.words + indices),
        rows=spec.topology.max_tokens_per_rank if spec.tokens == DYNAMIC else int(spec.tokens),
        passes=0.1,
        what=f"a record of {spec.hidden} {spec.dtype}",
        given=spec.tile,
    )


def build(spec: EpPackSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a record does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(record_words=spec.record.words),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: EpPackSpec) -> tuple[Parameter, ...]:
    """What a call takes: tokens, where they go, and the send slots."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    one = spec.topology
    choices = (tokens, one.topk)

    def given(name: str, dtype: str, *shape: Extent) -> Parameter:
        return Parameter(name=name, role="in", dtype=dtype, shape=shape, may_be_empty=True)

    taken = [given("x", spec.dtype, tokens, spec.hidden)]
    if spec.scale_packs:
        taken.append(given("x_scales", "e8m0x2", tokens, spec.scale_packs))
    taken.append(given("topk_idx", spec.index_dtype, *choices))
    if spec.weights:
        taken.append(given("topk_weights", "fp32", *choices))
    slots = (one.ranks, one.max_tokens_per_rank, spec.record.words)
    return (
        *taken,
        given("dst_slot", "int32", *choices),
        Parameter(name="rank", role="scalar", dtype="int32"),
        Parameter(name="send", role="out", dtype="int32", shape=slots),
    )


def _program(spec: EpPackSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: records are put together in UB and leave in one transfer each."""
    import tilelang.ascend.language as T

    entry = Entry("ep_pack", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    one, record = spec.topology, spec.record
    topk, owned, experts = one.topk, one.experts_per_rank, one.experts
    words, step = index_words(topk, spec.index_dtype), index_words(1, spec.index_dtype)
    packs, pitch, stages = spec.scale_packs, index_pitch(topk, "int32"), plan.stages
    # What is left of the scales' last block; a weight's last one is filled up as well.
    ragged = packs % (2 * BLOCK_WORDS)
    has_vector_work = not spec.cached or ragged > 0 or spec.weights

    def lanes() -> Any:
        return T.simd.vci(T.int32(0), "int32")

    def first_lanes(count: int) -> Any:
        return T.simd.update_mask(T.uint32(count), 32)

    def block_of(buffer: Any, count: int, *at: Any) -> Any:
        """``count`` words, zeros behind them; a plain load would read the parts behind, too."""
        places = T.reinterpret(lanes(), "uint32x64")
        return T.simd.vgather2(buffer[at], places, T.simd.vcmps(lanes(), count, op="lt"))

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, record_ub, index_ub, slot_ub = state
        T.ascend_wait_flag("S_MTE2", slot)
        T.copy(
            looked_at(call.x, (tokens, record.payload_words), "int32")[
                first : first + count, 0 : record.payload_words
            ],
            record_ub[slot, 0:count, 0 : record.payload_words],
        )
        if packs:
            halves = T.view(record_ub, (stages, plan.rows, 2 * record.words), "uint16")
            T.copy(
                call.x_scales[first : first + count, 0:packs],
                halves[slot, 0:count, 2 * record.scales : 2 * record.scales + packs],
            )
        if spec.weights:
            T.copy(
                looked_at(call.topk_weights, (tokens, topk), "int32")[first : first + count, 0:topk],
                record_ub[slot, 0:count, record.weights : record.weights + topk],
            )
        T.copy(
            looked_at(call.topk_idx, (tokens, words), "int32")[first : first + count, 0:words],
            index_ub[slot, 0:count, 0:words],
        )
        T.copy(call.dst_slot[first : first + count, 0:topk], slot_ub[slot, 0:count, 0:topk])
        T.ascend_set_flag("MTE2_S", slot)

    @T.macro
    def fill(record_ub: Any, index_ub: Any, slot: Any, count: Any, source: Any) -> None:
        """Everything in a record that is not copied: experts, source, and zeros behind scales and weights."""
        with T.SimdVF():
            zero = T.simd.vdup(0, "int32")
            for t in T.serial(T.cast(count, "uint16")):
                token = T.cast(t, "int32")
                if not spec.cached:
                    index = load_indices(index_ub, topk, experts, spec.index_dtype, slot, token, 0)
                    T.simd.vsts(record_ub[slot, token, record.experts], index, first_lanes(pitch))
                    origin = T.simd.vdup(source + token, "int32")
                    is_first = T.simd.vcmps(lanes(), 0, op="eq")
                    T.simd.vsts(
                        record_ub[slot, token, record.source],
                        T.simd.vsel(origin, zero, is_first),
                        first_lanes(BLOCK_WORDS),
                    )
                if spec.weights:
                    held = block_of(record_ub, topk, slot, token, record.weights)
                    T.simd.vsts(record_ub[slot, token, record.weights], held, first_lanes(pitch))
                if ragged:
                    at = record.scales + packs // (2 * BLOCK_WORDS) * BLOCK_WORDS
                    half = T.simd.vdup(0xFFFF if ragged % 2 else 0, "int32")
                    is_whole = T.simd.vcmps(lanes(), ragged // 2, op="lt")
                    is_split = T.simd.vcmps(lanes(), ragged // 2, op="eq")
                    kept = T.simd.vsel(T.simd.vdup(-1, "int32"), T.simd.vsel(half, zero, is_split), is_whole)
                    T.simd.vsts(
                        record_ub[slot, token, at],
                        T.simd.vand(block_of(record_ub, BLOCK_WORDS, slot, token, at), kept),
                        first_lanes(BLOCK_WORDS),
                    )

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, record_ub, index_ub, _ = state
        source = T.alloc_var("int32")
        source = call.rank * one.max_tokens_per_rank + first
        if has_vector_work:
            fill(record_ub, index_ub, slot, count, source)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, record_ub, index_ub, slot_ub = state
        place = T.alloc_var("int32")
        expert = T.alloc_var("int32")
        T.ascend_wait_flag("MTE2_S", slot)
        for token in T.serial(count):
            for k in T.serial(topk):
                place = slot_ub[slot, token, k]
                expert = index_ub[slot, token, k * step]
                if place >= 0 and place < one.max_tokens_per_rank and expert >= 0 and expert < experts:
                    T.copy(
                        record_ub[slot, token, 0 : record.words],
                        call.send[T.truncdiv(expert, owned), place, 0 : record.words],
                    )
        T.ascend_set_flag("S_MTE2", slot)

    run = row_pipeline(plan, cores, tokens, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            record_ub = T.alloc_shared((stages, plan.rows, record.words), "int32")
            index_ub = T.alloc_shared((stages, plan.rows, index_pitch(topk, spec.index_dtype)), "int32")
            slot_ub = T.alloc_shared((stages, plan.rows, pitch), "int32")
            for slot in T.serial(stages):
                T.ascend_set_flag("S_MTE2", slot)
            run((call, record_ub, index_ub, slot_ub), core)
            for slot in T.serial(stages):
                T.ascend_wait_flag("S_MTE2", slot)

    return entry.prim_func(block)


FAMILY = Family(
    name="ep_pack",
    summary="tokens, scales and routing packed as records into the send slots of their destinations",
    spec_type=EpPackSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, *EXPERT_PARALLEL_SOURCES, LANE_TOPK_SOURCE),
    page=KernelPage(
        computes=(
            "`send[r, dst_slot[t, k]]` becomes the record of token t, r being the rank that owns expert "
            "`topk_idx[t, k]`, for every choice whose slot is not negative (`ep_layout` leaves one for each "
            "destination). Slots that no token takes keep what they hold. A record is a run of 32-bit words; "
            "each part starts at a 32-byte block and is filled up to one:\n\n"
            "    payload   the row of x\n"
            "    scales    scale_packs 16-bit words, then zeros\n"
            "    experts   topk int32, experts of all ranks; -1 for none, and behind the last one\n"
            "    weights   topk fp32, then zeros\n"
            "    source    int32 rank * max_tokens_per_rank + t, then zeros\n\n"
            "Parts that the spec does not have are not there; a `cached` record has neither experts nor "
            "source. Payload and scales are moved as bits. Bringing slot `send[r, s]` to the receiver's "
            "`recv[rank, s]` is the network's part (on Ascend, URMA writes): nothing here crosses cards. A "
            "record is the same bytes wherever it lies, so that its transfer is one run of bytes."
        ),
        arguments={
            "x": "token rows",
            "x_scales": "16-bit words of scales per row: pairs of e8m0, or halves of fp32",
            "topk_idx": "row-major experts of each token; -1 for none; of an int64 the low word is looked at",
            "topk_weights": "row-major weights of the choices",
            "dst_slot": "row-major slots from `ep_layout`, or kept from an earlier dispatch",
            "rank": "this rank's number",
            "send": "record slots by destination",
        },
        tolerance="bit-exact",
        facts=(
            "github.com/deepseek-ai/DeepEP (V2.5) and its Ascend port, deep_ep/impls/ep/dispatch.hpp: what a "
            "token's record holds, and that a cached dispatch sends payload, scales and weights only; the "
            "order of the parts is this library's own",
        ),
        serves=("deep_ep.EPBuffer.dispatch",),
        examples=(
            EpPackSpec(
                topology=ExpertParallelTopology(ranks=8, experts=256, topk=6, max_tokens_per_rank=4096),
                hidden=7168,
            ),
            EpPackSpec(
                topology=ExpertParallelTopology(ranks=32, experts=256, topk=8, max_tokens_per_rank=4096),
                hidden=7168,
                dtype="e4m3",
                scale_packs=112,
            ),
        ),
    ),
)
