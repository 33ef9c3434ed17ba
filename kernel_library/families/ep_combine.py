"""ep_combine: what the experts of a token made, added up in order on the rank that the token came from."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

from kaas.kernel_library.entry import Entry, looked_at
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.column_tiles import (
    COLUMN_TILE_SOURCE,
    ColumnTile,
    TokenSum,
    choose_columns,
    require_column_tile,
)
from kaas.kernel_library.routing.expert_parallel import (
    EXPERT_PARALLEL_SOURCES,
    ExpertParallelTopology,
    Payload,
    require_payload,
    require_topology,
)
from kaas.kernel_library.routing.index_batches import INDEX_BYTES, index_batches
from kaas.kernel_library.routing.lane_topk import (
    INDEX_DTYPES,
    LANE_TOPK_SOURCE,
    IndexDtype,
    index_pitch,
    index_words,
)
from kaas.kernel_library.spec import (
    DTYPE_BYTES,
    DYNAMIC,
    Dim,
    KernelSpec,
    require_dim,
    require_int,
    require_one_of,
    within,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES
from kaas.kernel_library.vector.row_plan import VECTOR_LANES
from kaas.kernel_library.vector.wide_values import (
    WIDE_VALUE_SOURCE,
    load_wide,
    rounded,
    store_wide,
    unroll_of,
    widened,
)
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

PER_RANK = ("none", "here", "sent")
BIASES = ("bias0", "bias1")
DTYPE = "bf16"
TOKEN_BATCH = 128
BATCH_EVENT = 6


class EpCombineSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="ep_combine"):
    """Sum of a token's expert outputs and biases, in order, in fp32, rounded once to bf16.

    Arguments in call order: y[tokens, topk, hidden] bf16; topk_idx[tokens, topk] of ``index_dtype``; bias0
    and bias1 [tokens, hidden] bf16, as many as ``biases``; out[tokens, hidden] bf16. ``per_rank`` "none" adds
    every choice. "here" first adds the choices of each rank and rounds them to bf16. "sent" takes those sums
    from y, where the last choice of each rank holds its rank's; other choices are not looked at.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    topology: ExpertParallelTopology
    hidden: Payload
    biases: Annotated[int, within(0, 2)] = 0
    per_rank: Literal["none", "here", "sent"] = "none"
    index_dtype: IndexDtype = "int64"
    tokens: Dim = "dynamic"
    tile: ColumnTile | None = None

    def __post_init__(self) -> None:
        require_topology(self.topology)
        require_payload(self.hidden, DTYPE, 0)
        require_int(self.biases, "biases", 0, len(BIASES))
        require_one_of(self.per_rank, "per_rank", PER_RANK)
        require_one_of(self.index_dtype, "index_dtype", INDEX_DTYPES)
        require_dim(self.tokens, "tokens", self.topology.max_tokens_per_rank)
        require_column_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a given tile does not fit ``target``'s UB."""
        choose_tile(self, target)


def choose_tile(spec: EpCombineSpec, target: Target) -> tuple[ColumnTile, dict[str, Any]]:
    """Columns and stages with the least modelled time, and the report of the choice.

    Raises :class:`DoesNotFit` if a given tile needs more UB than there is.
    """
    topk = spec.topology.topk
    rows = topk + spec.biases
    work = TokenSum(
        hidden=spec.hidden,
        rows=rows,
        tokens=spec.topology.max_tokens_per_rank if spec.tokens == DYNAMIC else int(spec.tokens),
        column_bytes=(rows + 1) * DTYPE_BYTES[DTYPE],
        loaded_bytes=rows * DTYPE_BYTES[DTYPE],
        stage_bytes=index_pitch(topk, "int32") * INDEX_BYTES if spec.per_rank == "here" else 0,
        fixed_bytes=TOKEN_BATCH * index_pitch(topk, spec.index_dtype) * INDEX_BYTES,
    )
    return choose_columns(work, target, spec.tile)


def parameters(spec: EpCombineSpec) -> tuple[Parameter, ...]:
    """What a call takes: expert outputs, the choices they belong to, biases, and the sums."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    topk = spec.topology.topk

    def tensor(name: str, role: Any, dtype: str, *shape: Extent) -> Parameter:
        return Parameter(name=name, role=role, dtype=dtype, shape=(tokens, *shape))

    return (
        tensor("y", "in", DTYPE, topk, spec.hidden),
        tensor("topk_idx", "in", spec.index_dtype, topk),
        *(tensor(name, "in", DTYPE, spec.hidden) for name in BIASES[: spec.biases]),
        tensor("out", "out", DTYPE, spec.hidden),
    )


def build(spec: EpCombineSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a given tile does not fit UB."""
    tile, why = choose_tile(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, tile, target.vector_cores),
        choices={"columns": tile.columns, "stages": tile.stages, "why": why},
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: EpCombineSpec, tile: ColumnTile, cores: int) -> Any:
    """The TileLang function of ``spec``: a stage holds some columns of one token's rows.

    Scalar code loads the rows that count to the front of the stage, in the order in which they are added; of
    sums by rank it marks the last row.
    """
    import tilelang.ascend.language as T

    entry = Entry("ep_combine", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    hidden, topk, biases = spec.hidden, spec.topology.topk, spec.biases
    owned, experts = spec.topology.experts_per_rank, spec.topology.experts
    words, step = index_words(topk, spec.index_dtype), index_words(1, spec.index_dtype)
    columns, stages = tile.columns, tile.stages
    chunks, vectors = -(-hidden // columns), columns // VECTOR_LANES
    together = unroll_of(vectors)
    rounds_ranks = spec.per_rank == "here"

    @T.macro
    def load_batch(state: Any, first: Any, count: Any) -> None:
        call, index_ub, _ = state
        T.copy(
            looked_at(call.topk_idx, (tokens, words), "int32")[first : first + count, 0:words],
            index_ub[0:count, 0:words],
        )

    def is_known(index: Any) -> Any:
        return T.And(index >= 0, index < experts)

    def same_rank(index: Any, other: Any) -> Any:
        return T.And(is_known(other), T.truncdiv(other, owned) == T.truncdiv(index, owned))

    @T.macro
    def is_last_of_rank(index_ub: Any, token: Any, k: Any) -> Any:
        """Whether choice k, a known one, is the last of its token on its rank."""
        last = T.alloc_var("int32")
        last = 1
        for other in T.serial(topk):
            if other > k and same_rank(index_ub[token, k * step], index_ub[token, other * step]):
                last = 0
        return last

    @T.macro
    def load_rows(state: Any, slot: Any, token: Any, at: Any, column: Any, width: Any, found: Any) -> None:
        """Rows of token ``at`` behind the biases; ``found[0]`` counts them."""
        call, index_ub, (row_ub, _, ends_ub) = state
        for k in T.serial(topk):
            if is_known(index_ub[token, k * step]):
                if spec.per_rank == "none":
                    T.copy(call.y[at, k, column : column + width], row_ub[slot, biases + found[0], 0:width])
                    found[0] = found[0] + 1
                elif is_last_of_rank(index_ub, token, k) > 0:
                    if spec.per_rank == "sent":
                        T.copy(
                            call.y[at, k, column : column + width], row_ub[slot, biases + found[0], 0:width]
                        )
                        found[0] = found[0] + 1
                    else:
                        for other in T.serial(topk):
                            if other <= k and same_rank(
                                index_ub[token, k * step], index_ub[token, other * step]
                            ):
                                T.copy(
                                    call.y[at, other, column : column + width],
                                    row_ub[slot, biases + found[0], 0:width],
                                )
                                ends_ub[slot, found[0]] = T.if_then_else(other == k, 1, 0)
                                found[0] = found[0] + 1

    @T.macro
    def add_up(ring: Any, slot: Any, found: Any) -> None:
        row_ub, out_ub, ends_ub = ring
        with T.SimdVF():
            total = T.simd.alloc_local((together,), "float32")
            part = T.simd.alloc_local((together,), "float32")
            for group in T.serial(T.uint16(vectors // together)):
                origin = T.cast(group, "int32") * (together * VECTOR_LANES)
                for i in T.unroll(together, explicit=True):
                    total[i] = T.simd.vdup(0.0, "float32")
                    part[i] = T.simd.vdup(0.0, "float32")
                    if biases > 0:
                        total[i] = load_wide(DTYPE, row_ub, slot, 0, origin + i * VECTOR_LANES)
                    if biases > 1:
                        second = load_wide(DTYPE, row_ub, slot, 1, origin + i * VECTOR_LANES)
                        total[i] = T.simd.vadd(total[i], second)
                for r in T.serial(T.cast(found, "uint16")):
                    row = T.cast(r, "int32")
                    for i in T.unroll(together, explicit=True):
                        value = load_wide(DTYPE, row_ub, slot, biases + row, origin + i * VECTOR_LANES)
                        if rounds_ranks:
                            part[i] = T.simd.vadd(part[i], value)
                            ends = T.simd.vcmps(T.simd.vld(ends_ub[slot, row], dist="BRC_B32"), 0, op="ne")
                            whole = widened(DTYPE, rounded(DTYPE, part[i]))
                            total[i] = T.simd.vsel(T.simd.vadd(total[i], whole), total[i], ends)
                            part[i] = T.simd.vsel(T.simd.vdup(0.0, "float32"), part[i], ends)
                        else:
                            total[i] = T.simd.vadd(total[i], value)
                for i in T.unroll(together, explicit=True):
                    store_wide(DTYPE, out_ub, total[i], slot, origin + i * VECTOR_LANES)

    @T.macro
    def combine_tokens(state: Any, turn: Any, first: Any, count: Any) -> None:
        call, _, ring = state
        row_ub, out_ub, _ = ring
        column = T.alloc_var("int32")
        width = T.alloc_var("int32")
        held = T.alloc_var("int32")
        found = T.alloc_local((1,), "int32")
        for token in T.serial(count):
            for chunk in T.serial(chunks):
                slot = ((turn * TOKEN_BATCH + token) * chunks + chunk) % stages
                column = chunk * columns
                width = T.min(columns, hidden - column)
                found[0] = 0
                T.ascend_wait_flag("MTE3_MTE2", slot)
                if rounds_ranks:
                    T.ascend_wait_flag("V_S", slot)
                if biases > 0:
                    T.copy(call.bias0[first + token, column : column + width], row_ub[slot, 0, 0:width])
                if biases > 1:
                    T.copy(call.bias1[first + token, column : column + width], row_ub[slot, 1, 0:width])
                load_rows(state, slot, token, first + token, column, width, found)
                T.ascend_set_flag("MTE2_V", slot)
                T.ascend_wait_flag("MTE2_V", slot)
                if rounds_ranks:
                    T.ascend_set_flag("S_V", slot)
                    T.ascend_wait_flag("S_V", slot)
                held = found[0]
                add_up(ring, slot, held)
                if rounds_ranks:
                    T.ascend_set_flag("V_S", slot)
                T.ascend_set_flag("V_MTE3", slot)
                T.ascend_wait_flag("V_MTE3", slot)
                T.copy(out_ub[slot, 0:width], call.out[first + token, column : column + width])
                T.ascend_set_flag("MTE3_MTE2", slot)

    run = index_batches(TOKEN_BATCH, cores, tokens, event=BATCH_EVENT, load=load_batch, work=combine_tokens)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            row_ub = T.alloc_shared((stages, topk + biases, columns), "bfloat16")
            out_ub = T.alloc_shared((stages, columns), "bfloat16")
            index_ub = T.alloc_shared((TOKEN_BATCH, index_pitch(topk, spec.index_dtype)), "int32")
            ends_ub = index_ub
            if rounds_ranks:
                ends_ub = T.alloc_shared((stages, index_pitch(topk, "int32")), "int32")
            for slot in T.serial(stages):
                T.ascend_set_flag("MTE3_MTE2", slot)
                if rounds_ranks:
                    T.ascend_set_flag("V_S", slot)
            run((call, index_ub, (row_ub, out_ub, ends_ub)), core)
            for slot in T.serial(stages):
                T.ascend_wait_flag("MTE3_MTE2", slot)
                if rounds_ranks:
                    T.ascend_wait_flag("V_S", slot)

    return entry.prim_func(block)


_EXAMPLE = ExpertParallelTopology(ranks=8, experts=256, topk=6, max_tokens_per_rank=4096)

FAMILY = Family(
    name="ep_combine",
    summary="what a token's experts made on all ranks, added up in order with biases",
    spec_type=EpCombineSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(
        *ROW_KERNEL_SOURCES,
        COLUMN_TILE_SOURCE,
        *EXPERT_PARALLEL_SOURCES,
        LANE_TOPK_SOURCE,
        WIDE_VALUE_SOURCE,
    ),
    page=KernelPage(
        computes=(
            "    out[t] = bf16(bias0[t] + bias1[t] + sum over k ascending of y[t, k])\n\n"
            "in fp32, one addition after the other, and one rounding at the end; without a bias the sum "
            "starts at 0. Choices of no expert (`topk_idx[t, k]` -1 above all) are left out and their rows "
            "of y not looked at. Routing weights do not enter: `swiglu` has multiplied by them.\n\n"
            "*Sums by rank.* A rank may add up the rows of its own experts before it sends them, so that one "
            "row per token and rank travels instead of one per choice. That sum is rounded to bf16 and takes "
            'the place of the token\'s last choice on that rank. With `per_rank` "sent" y holds such sums; '
            "the sender makes them with `reduce_fused` without weights, whose positions are the first `topk` "
            'columns of `recv_src_metadata`. With "here" y holds every choice\'s row and this kernel does '
            "both steps, with the same bits. The network brings the row of choice k of a token to `y[t, k]` "
            "on the token's own rank: its `source` is rank * max_tokens_per_rank + t."
        ),
        arguments={
            "y": "[tokens, topk, hidden], row-major: the receive buffer of the combine",
            "topk_idx": "row-major experts of each token; -1 for none; of an int64 the low word is looked at",
            "bias0": "added first, for example the residual stream",
            "bias1": "added second, for example the output of a shared expert",
            "out": "sums by token",
        },
        tolerance="bit-exact",
        facts=(
            "github.com/deepseek-ai/DeepEP-Ascend, deep_ep/utils/refs.py: order of the sum, where biases and "
            "sums by rank enter",
        ),
        serves=("deep_ep.EPBuffer.combine",),
        examples=(
            EpCombineSpec(topology=_EXAMPLE, hidden=7168),
            EpCombineSpec(topology=_EXAMPLE, hidden=7168, biases=2, per_rank="here"),
            EpCombineSpec(topology=_EXAMPLE, hidden=7168, biases=1, per_rank="sent"),
        ),
    ),
)
