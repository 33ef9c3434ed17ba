"""topk_select: the k largest values of each row of bf16 scores, in the order of their indices."""

# mypy: disable-error-code="untyped-decorator"
# The TileLang program below is a language of its own: what it annotates and calls are no Python types.

import math
from typing import Annotated, Any

import msgspec

from kaas.kernel_library.choice import Candidate, TooLarge, report
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    KernelSpec,
    require_bool,
    require_dim,
    require_int,
    within,
)
from kaas.kernel_library.vector.radix_select import (
    COUNTER_ROWS,
    LANES,
    MAX_CHUNK,
    MAX_K,
    RADIX_SELECT_SOURCE,
    STATE_ROWS,
    Selection,
    begin_row,
    choose,
    count_high_bytes,
    count_low_bytes,
    find_bucket,
    find_threshold,
    finish_row,
    fixed_bytes,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import DMA_BYTES_PER_CYCLE, STAGE_OVERHEAD_CYCLES
from kaas.proto.errors import DoesNotFit, InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_VOCAB = 2 * 1024 * 1024 - 1
NOMINAL_VOCAB = 65536
"""How long rows of a dynamic vocabulary are taken to be."""
CHUNKS = (16384, 8192, 4096, 2048, 1024, 512, 256)
MAX_SLOTS = 6
OUT_STAGES = 2
FLAG_PITCH = 8
"""int32 elements of a UB row that holds one flag."""
VALUE_BYTES = 2
PASSES = 3

# Cycles of the three passes' vector instructions for a value, and of starting a vector function.
CYCLES_PER_VALUE = 0.25
FUNCTION_OVERHEAD_CYCLES = 60.0


class SelectTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An explicit choice: values of a chunk (a power of two), and chunks that lie in UB."""

    chunk: Annotated[int, within(256, MAX_CHUNK)]
    slots: Annotated[int, within(1, MAX_SLOTS)]

    def __post_init__(self) -> None:
        require_int(self.chunk, "tile.chunk", 256, MAX_CHUNK)
        require_int(self.slots, "tile.slots", 1, MAX_SLOTS)
        if self.chunk not in CHUNKS:
            legal = f"a power of two from 256 to {MAX_CHUNK}"
            raise InvalidSpec(f"tile.chunk is {self.chunk}; legal: {legal}", field="tile.chunk", legal=legal)


def _require_tile(value: Any) -> None:
    if value is not None and not isinstance(value, SelectTile):
        legal = "a SelectTile or null"
        raise InvalidSpec("tile is not a SelectTile(chunk=..., slots=...)", field="tile", legal=legal)


class TopkSelectSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="topk_select"):
    """Exact top-k of rows of bf16 on the vector cores.

    Arguments in call order: input[rows, vocab] bf16; end[rows] int32 if ``end``; output_idx_offset[rows]
    int32 if ``output_idx_offset``; output_idx[rows, topk] int32; output_val[rows, topk] bf16 if
    ``return_value``; nan_found[rows] int32 if ``nan_flags``; the scalars idx_oob_fill_value, int32, and, if
    ``return_value``, value_oob_fill_value, fp32.

    ``sorted_index`` promises ascending indices. Without it their order is not promised.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    topk: Annotated[int, within(1, MAX_K)]
    vocab: Annotated[int, within(1, MAX_VOCAB)] | str = "dynamic"
    rows: Dim = "dynamic"
    sorted_index: bool = False
    end: bool = False
    output_idx_offset: bool = False
    return_value: bool = True
    nan_flags: bool = False
    tile: SelectTile | None = None

    def __post_init__(self) -> None:
        require_int(self.topk, "topk", 1, MAX_K)
        require_dim(self.vocab, "vocab", MAX_VOCAB)
        require_dim(self.rows, "rows")
        require_bool(self.sorted_index, "sorted_index")
        require_bool(self.end, "end")
        require_bool(self.output_idx_offset, "output_idx_offset")
        require_bool(self.return_value, "return_value")
        require_bool(self.nan_flags, "nan_flags")
        _require_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the spec's own tile does not fit ``target``'s UB."""
        plan_of(self, target)


class SelectPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``slots`` chunks of ``chunk`` values in UB; ``why`` is the report of the choice."""

    chunk: int
    slots: int
    why: dict[str, Any]


def _padded_topk(spec: TopkSelectSpec) -> int:
    return -(-spec.topk // LANES) * LANES


def _fixed_bytes(spec: TopkSelectSpec) -> int:
    """UB besides the chunks: the selection's own, and the results of two rows."""
    row = _padded_topk(spec) * (4 + VALUE_BYTES * spec.return_value) + 4 * FLAG_PITCH
    return fixed_bytes(spec.topk) + OUT_STAGES * row


def plan_of(spec: TopkSelectSpec, target: Target) -> SelectPlan:
    """The best plan by modelled time of a row; raises :class:`DoesNotFit` naming ``tile``."""
    room = target.ub_bytes - _fixed_bytes(spec)
    vocab = NOMINAL_VOCAB if spec.vocab == DYNAMIC else int(spec.vocab)
    if spec.tile is not None:
        tile = spec.tile
        excess = tile.chunk * tile.slots * VALUE_BYTES - room
        if excess > 0:
            raise DoesNotFit(
                f"{tile.slots} chunks of {tile.chunk} values need {excess} bytes of UB more than there are",
                field="tile",
                legal=f"at most {room // VALUE_BYTES} values in all chunks together",
                buffer="UB",
                excess_bytes=excess,
            )
        best = _modelled(tile.chunk, tile.slots, vocab)
        return SelectPlan(chunk=tile.chunk, slots=tile.slots, why=report(best, [best], given=True))
    candidates, too_large = [], []
    for chunk in CHUNKS:
        for slots in range(2, MAX_SLOTS + 1):
            excess = chunk * slots * VALUE_BYTES - room
            if excess > 0:
                tiles = {"chunk": chunk, "slots": slots}
                too_large.append(TooLarge(tiles=tiles, buffer="UB", excess_bytes=excess))
            else:
                candidates.append(_modelled(chunk, slots, vocab))
    best = min(candidates, key=lambda one: (one.cycles, one.tiles["chunk"] * one.tiles["slots"]))
    return SelectPlan(**best.tiles, why=report(best, candidates, too_large))


def _modelled(chunk: int, slots: int, vocab: int) -> Candidate:
    """One row's time: what stays in UB is loaded once, a longer row once for each pass."""
    chunks = math.ceil(vocab / chunk)
    loads = 1 if chunks <= slots else PASSES
    move = loads * vocab * VALUE_BYTES / DMA_BYTES_PER_CYCLE
    compute = vocab * CYCLES_PER_VALUE + PASSES * chunks * FUNCTION_OVERHEAD_CYCLES
    starts = loads * chunks * STAGE_OVERHEAD_CYCLES / (3 * max(slots - 1, 1))
    # What does not fit beside a row that stays in UB is loaded when its last pass ends: half of it shows.
    exposed = move * max(2 * chunks - slots, 0) / chunks / 2 if loads == 1 else 0.0
    bound = "memory" if move >= compute else "vector"
    return Candidate(
        tiles={"chunk": chunk, "slots": slots}, cycles=max(move, compute) + starts + exposed, bound=bound
    )


def build(spec: TopkSelectSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices={"chunk": plan.chunk, "slots": plan.slots, "why": plan.why},
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: TopkSelectSpec) -> tuple[Parameter, ...]:
    """What a call takes; see :class:`TopkSelectSpec`."""
    rows: Extent = "rows" if spec.rows == DYNAMIC else spec.rows
    vocab: Extent = "vocab" if spec.vocab == DYNAMIC else int(spec.vocab)
    taken = [Parameter(name="input", role="in", dtype="bf16", shape=(rows, vocab), may_be_empty=True)]
    if spec.end:
        taken.append(Parameter(name="end", role="in", dtype="int32", shape=(rows,)))
    if spec.output_idx_offset:
        taken.append(Parameter(name="output_idx_offset", role="in", dtype="int32", shape=(rows,)))
    taken.append(Parameter(name="output_idx", role="out", dtype="int32", shape=(rows, spec.topk)))
    if spec.return_value:
        taken.append(Parameter(name="output_val", role="out", dtype="bf16", shape=(rows, spec.topk)))
    if spec.nan_flags:
        taken.append(Parameter(name="nan_found", role="out", dtype="int32", shape=(rows,)))
    taken.append(Parameter(name="idx_oob_fill_value", role="scalar", dtype="int32"))
    if spec.return_value:
        taken.append(Parameter(name="value_oob_fill_value", role="scalar", dtype="fp32"))
    return tuple(taken)


def _program(spec: TopkSelectSpec, plan: SelectPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: every core takes every ``cores``-th row.

    Chunks go round a ring of UB slots. A row of no more chunks than slots stays there for all three passes,
    each slot free for the next row when the last pass is through with it.
    """
    import tilelang.ascend.language as T

    entry = Entry("topk_select", parameters(spec))
    rows = entry.extent("rows" if spec.rows == DYNAMIC else spec.rows)
    vocab = entry.extent("vocab" if spec.vocab == DYNAMIC else int(spec.vocab))
    chunk, slots, topk = plan.chunk, plan.slots, spec.topk
    wide = spec.vocab == DYNAMIC or int(spec.vocab) > 1 << 16
    begin = begin_row()
    count_high, count_low = count_high_bytes(topk), count_low_bytes(topk)
    bucket, threshold = find_bucket(), find_threshold()
    choose_from = choose(wide=wide)
    finish = finish_row(topk, wide=wide, values=spec.return_value, flags=spec.nan_flags)

    @T.macro
    def load(call: Any, selection: Any, row: Any, slot: Any, first: Any, length: Any) -> None:
        """One chunk into its slot, as soon as that is free."""
        T.ascend_wait_flag("V_MTE2", slot)
        T.copy(
            T.view(call.input, (rows, vocab), "int16")[row, first : first + length],
            selection.values[slot, 0:length],
        )
        T.ascend_set_flag("MTE2_V", slot)
        T.ascend_wait_flag("MTE2_V", slot)

    @T.macro
    def select(call: Any, selection: Any, row: Any, turn: Any, count: Any, rank: Any) -> None:
        """The three passes over the first ``count`` values of a row; ``turn[0]`` counts this core's loads."""
        chunks = T.alloc_var("int32")
        start = T.alloc_var("int32")
        first = T.alloc_var("int32")
        length = T.alloc_var("int32")
        chunks = T.truncdiv(count + chunk - 1, chunk)
        start = turn[0]
        begin(selection)
        for i in T.serial(chunks):
            slot = (start + i) % slots
            first = i * chunk
            length = T.min(chunk, count - first)
            load(call, selection, row, slot, first, length)
            count_high(selection, slot, length)
            if chunks > slots:
                T.ascend_set_flag("V_MTE2", slot)
        bucket(selection, rank)
        start = T.if_then_else(chunks > slots, start + chunks, start)
        for i in T.serial(chunks):
            slot = (start + i) % slots
            first = i * chunk
            length = T.min(chunk, count - first)
            if chunks > slots:
                load(call, selection, row, slot, first, length)
            count_low(selection, slot, length)
            if chunks > slots:
                T.ascend_set_flag("V_MTE2", slot)
        threshold(selection, rank)
        start = T.if_then_else(chunks > slots, start + chunks, start)
        for i in T.serial(chunks):
            slot = (start + i) % slots
            first = i * chunk
            length = T.min(chunk, count - first)
            if chunks > slots:
                load(call, selection, row, slot, first, length)
            choose_from(selection, slot, first, length)
            T.ascend_set_flag("V_MTE2", slot)
        turn[0] = (start + chunks) % slots

    @T.macro
    def store(call: Any, out: Any, row: Any, stage: Any) -> None:
        index_ub, value_ub, flag_ub = out
        T.ascend_set_flag("V_MTE3", stage)
        T.ascend_wait_flag("V_MTE3", stage)
        T.copy(index_ub[stage, 0:topk], call.output_idx[row, 0:topk])
        if spec.return_value:
            T.copy(
                value_ub[stage, 0:topk],
                T.view(call.output_val, (rows, topk), "int16")[row, 0:topk],
            )
        if spec.nan_flags:
            T.copy(flag_ub[stage, 0:1], call.nan_found[row : row + 1])
        T.ascend_set_flag("MTE3_V", stage)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            values_ub = T.alloc_shared((slots, chunk), "int16")
            counters_ub = T.alloc_shared((COUNTER_ROWS, LANES), "uint16")
            state_ub = T.alloc_shared((STATE_ROWS, LANES), "int16")
            chosen_ub = T.alloc_shared((3, _padded_topk(spec)), "int16")
            result = (OUT_STAGES, _padded_topk(spec))
            index_ub = T.alloc_shared(result, "int32")
            value_ub = T.alloc_shared(result, "int16") if spec.return_value else None
            flag_ub = T.alloc_shared((OUT_STAGES, FLAG_PITCH), "int32") if spec.nan_flags else None
            turn = T.alloc_local((1,), "int32")
            turns = T.alloc_var("int32")
            row = T.alloc_var("int32")
            count = T.alloc_var("int32")
            rank = T.alloc_var("int32")
            offset = T.alloc_var("int32")
            turn[0] = 0
            for slot in T.serial(slots):
                T.ascend_set_flag("V_MTE2", slot)
            for one in T.serial(OUT_STAGES):
                T.ascend_set_flag("MTE3_V", one)
            # A variable, because TVM turns a loop whose extent is known to be 0 or 1 into its body.
            turns = T.truncdiv(rows + cores - 1 - core, cores)
            for i in T.serial(turns):
                stage = i % OUT_STAGES
                row = i * cores + core
                count = vocab
                if spec.end:
                    count = T.max(T.min(call.end[row], vocab), 0)
                rank = T.min(count, topk)
                offset = 0
                if spec.output_idx_offset:
                    offset = call.output_idx_offset[row]
                selection = Selection(
                    values_ub,
                    T.view(values_ub, (slots, 2 * chunk), "uint8"),
                    counters_ub,
                    state_ub,
                    chosen_ub,
                )
                select(call, selection, row, turn, count, rank)
                T.ascend_wait_flag("MTE3_V", stage)
                finish(selection, call, (index_ub, value_ub, flag_ub), stage, rank, offset)
                store(call, (index_ub, value_ub, flag_ub), row, stage)
            for slot in T.serial(slots):
                T.ascend_wait_flag("V_MTE2", slot)
            for one in T.serial(OUT_STAGES):
                T.ascend_wait_flag("MTE3_V", one)

    return entry.prim_func(block)


FAMILY = Family(
    name="topk_select",
    summary="the k largest values of each row of bf16 scores, in the order of their indices",
    spec_type=TopkSelectSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(
        "kaas.kernel_library.choice",
        "kaas.kernel_library.entry",
        "kaas.kernel_library.vector.row_pipeline",
        "kaas.kernel_library.vector.row_plan",
        RADIX_SELECT_SOURCE,
    ),
    page=KernelPage(
        computes=(
            "Of the values 0 to `end[r]` - 1 of row r (of all, if there is no `end`), the `topk` largest: "
            "`output_idx[r]` lists their places in ascending order plus `output_idx_offset[r]`, "
            "`output_val[r]` the values to the bit. A row of no more than `topk` values gives all of them; "
            "the rest of its indices is `idx_oob_fill_value`, to which no offset is added, the rest of its "
            "values `value_oob_fill_value` rounded to bf16.\n\n"
            "Values rank by their bits, +0 above -0, infinities where they belong. Equal ones go to the "
            "lower index, so that a row has one answer, on every part.\n\n"
            "A NaN among a row's values makes all its indices 0x3F3F3F3F and all its values the fill. With "
            "`nan_flags` such a row also has `nan_found[r]` 1, every other one 0: a caller who wants to stop "
            "at a NaN looks there. Nothing traps on the device, as a trap would end all work on the stream. "
            "What lies at or behind `end[r]` is never looked at. An `end` below 0 counts as 0, one beyond "
            "the row as its length.\n\n"
            "Every core takes every n-th row, and one row is the work of one core. A row that fits the "
            "chunks in UB is read once, a longer one three times."
        ),
        arguments={
            "input": "row-major bf16; rows with padding at their ends are passed whole, with `end`",
            "end": "int32, how many values of each row take part",
            "output_idx_offset": "int32, added to the row's indices",
            "output_idx": "row-major int32, ascending",
            "output_val": "row-major bf16, in the order of `output_idx`",
            "nan_found": "int32, 1 for a row with a NaN, else 0",
            "idx_oob_fill_value": "the index where a row has fewer than `topk` values",
            "value_oob_fill_value": "the value there, fp32",
        },
        tolerance="exact, against a stable descending sort by the values' bits",
        facts=(
            "DeepSelect: `topk`, whose Ascend kernels take bf16 rows of fewer than 2 Mi values, k up to 4096 "
            "and give int32 indices; there a NaN marks the whole row, and traps if abort_when_nan_found",
        ),
        serves=("deep_select.topk",),
        examples=(
            TopkSelectSpec(topk=2048, end=True, return_value=False, sorted_index=True),
            TopkSelectSpec(topk=512, vocab=4096, nan_flags=True),
        ),
    ),
)
