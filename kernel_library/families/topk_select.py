"""topk_select: the k largest values of each row of bf16 scores, in the order of their indices."""

# mypy: disable-error-code="untyped-decorator"
# The TileLang program below is a language of its own: what it annotates and calls are no Python types.

import math
from typing import Annotated, Any, Literal

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
from kaas.kernel_library.vector.radix_select import LANES, MAX_CHUNK, MAX_K, fixed_bytes
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import DMA_BYTES_PER_CYCLE, STAGE_OVERHEAD_CYCLES
from kaas.kernel_library.vector.select_program import (
    FLAG_PITCH,
    MAX_SLOTS,
    OUT_STAGES,
    SELECT_SOURCES,
    SelectShape,
    select_program,
    shared_select_program,
)
from kaas.kernel_library.vector.shared_select import EXCHANGED, MAX_PARTS, parts_bytes
from kaas.proto.errors import DoesNotFit, InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_VOCAB = 2 * 1024 * 1024 - 1
NOMINAL_VOCAB = 65536
"""How long rows of a dynamic vocabulary, or their parts, are taken to be."""
CHUNKS = (16384, 8192, 4096, 2048, 1024, 512, 256)
VALUE_BYTES = 2
EXCHANGING_CORES = 128
"""More vector cores than any part of the line has."""
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
    int32 if ``output_idx_offset``; exchange[128, 640] int16, a workspace, if ``parts`` > 1;
    output_idx[rows, topk] int32; output_val[rows, topk] bf16 if ``return_value``; nan_found[rows] int32 if
    ``nan_flags``; the scalars idx_oob_fill_value, int32, and value_oob_fill_value, fp32, if
    ``return_value``.

    ``sorted_index`` promises ascending indices. Without it their order is not promised. ``parts`` is how many
    cores share a row, at most: for launches of fewer rows than there are cores.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    topk: Annotated[int, within(1, MAX_K)]
    vocab: Annotated[int, within(1, MAX_VOCAB)] | Literal["dynamic"] = "dynamic"
    rows: Dim = "dynamic"
    sorted_index: bool = False
    end: bool = False
    output_idx_offset: bool = False
    return_value: bool = True
    nan_flags: bool = False
    parts: Annotated[int, within(1, MAX_PARTS)] = 1
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
        require_int(self.parts, "parts", 1, MAX_PARTS)
        _require_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the spec's own tile does not fit ``target``'s UB."""
        plan_of(self, target)


class SelectPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``slots`` chunks of ``chunk`` values in UB; ``why`` is the report of the choice."""

    chunk: int
    slots: int
    why: dict[str, Any]


def _fixed_bytes(spec: TopkSelectSpec) -> int:
    """UB besides the chunks: the selection's own, the results of two rows, the counters of parts."""
    row = -(-spec.topk // LANES) * LANES * (4 + VALUE_BYTES * spec.return_value) + 4 * FLAG_PITCH
    return fixed_bytes(spec.topk) + OUT_STAGES * row + (parts_bytes(spec.parts) if spec.parts > 1 else 0)


def plan_of(spec: TopkSelectSpec, target: Target) -> SelectPlan:
    """The best plan by modelled time of a row; raises :class:`DoesNotFit` naming ``tile``."""
    room = target.ub_bytes - _fixed_bytes(spec)
    vocab = NOMINAL_VOCAB if spec.vocab == DYNAMIC else -(-int(spec.vocab) // spec.parts)
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
    entry = Entry("topk_select", parameters(spec))
    shape = SelectShape(
        topk=spec.topk,
        rows=entry.extent("rows" if spec.rows == DYNAMIC else spec.rows),
        vocab=entry.extent("vocab" if spec.vocab == DYNAMIC else int(spec.vocab)),
        wide=spec.vocab == DYNAMIC or int(spec.vocab) > 1 << 16,
        end=spec.end,
        offset=spec.output_idx_offset,
        values=spec.return_value,
        flags=spec.nan_flags,
        chunk=plan.chunk,
        slots=plan.slots,
        parts=min(spec.parts, target.vector_cores),
    )
    program = shared_select_program if spec.parts > 1 else select_program
    return BuiltKernel(
        prim_func=program(entry, shape, target.vector_cores),
        choices={"chunk": plan.chunk, "slots": plan.slots, "parts": shape.parts, "why": plan.why},
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: TopkSelectSpec) -> tuple[Parameter, ...]:
    """What a call takes; see :class:`TopkSelectSpec`."""
    rows: Extent = "rows" if spec.rows == DYNAMIC else spec.rows
    vocab: Extent = "vocab" if spec.vocab == DYNAMIC else int(spec.vocab)
    # With an exchange there is something to write even where there are no rows.
    optional = spec.parts > 1
    taken = [Parameter(name="input", role="in", dtype="bf16", shape=(rows, vocab), may_be_empty=True)]
    if spec.end:
        taken.append(Parameter(name="end", role="in", dtype="int32", shape=(rows,), may_be_empty=optional))
    if spec.output_idx_offset:
        taken.append(
            Parameter(
                name="output_idx_offset", role="in", dtype="int32", shape=(rows,), may_be_empty=optional
            )
        )
    if spec.parts > 1:
        workspace = (EXCHANGING_CORES, EXCHANGED)
        taken.append(Parameter(name="exchange", role="inout", dtype="int16", shape=workspace))
    chosen = (rows, spec.topk)
    results = [Parameter(name="output_idx", role="out", dtype="int32", shape=chosen, may_be_empty=optional)]
    if spec.return_value:
        results.append(
            Parameter(name="output_val", role="out", dtype="bf16", shape=chosen, may_be_empty=optional)
        )
    if spec.nan_flags:
        results.append(
            Parameter(name="nan_found", role="out", dtype="int32", shape=(rows,), may_be_empty=optional)
        )
    taken += results
    taken.append(Parameter(name="idx_oob_fill_value", role="scalar", dtype="int32"))
    if spec.return_value:
        taken.append(Parameter(name="value_oob_fill_value", role="scalar", dtype="fp32"))
    return tuple(taken)


FAMILY = Family(
    name="topk_select",
    summary="the k largest values of each row of bf16 scores, in the order of their indices",
    spec_type=TopkSelectSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=SELECT_SOURCES,
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
            "Every core takes every n-th row. A row that fits the chunks in UB is read once, a longer one "
            "three times. With `parts` > 1, for launches of fewer rows than cores, up to so many cores share "
            "a row: each has a part of it, and they tell each other their counts through `exchange`, behind "
            "two barriers of all cores. The results are the same."
        ),
        arguments={
            "input": "row-major bf16; rows with padding at their ends are passed whole, with `end`",
            "end": "int32, how many values of each row take part",
            "output_idx_offset": "int32, added to the row's indices",
            "exchange": "workspace: what the cores tell each other; its old content does not matter",
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
            TopkSelectSpec(topk=2048, end=True, return_value=False, sorted_index=True, parts=32),
        ),
    ),
)
