"""Row plan: how the rows of a vector kernel pass through UB.

Every vector core takes groups of rows through a ring of UB stages, so that loading, computing and storing
overlap. How many rows a stage holds and how many stages there are follows from the bytes of a row and the
target's UB; a model of one core's time ranks what fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from kaas.kernel_library.choice import Candidate, TooLarge, report
from kaas.kernel_library.spec import require_int, within
from kaas.proto.errors import DoesNotFit, InvalidSpec
from kaas.proto.target import Target

VECTOR_LANES = 64
"""fp32 elements of one 256-byte vector register."""
MAX_STAGES = 4
MAX_ROWS = 64
ROW_COUNTS = (MAX_ROWS, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
NOMINAL_ROWS = 4096
"""How many rows a dynamic number of rows is taken to be."""
SIMT_CACHE_BYTES = 32 * 1024
"""UB that the data cache of a kernel with SIMT functions takes at least."""

# Rates of the 950 line; only their ratios matter. One vector core's share of about 5 TB/s at 1.65 GHz over
# 64 cores, what starting a transfer costs, and how many bytes a plain vector pass reads per cycle.
DMA_BYTES_PER_CYCLE = 47.0
STAGE_OVERHEAD_CYCLES = 700.0
VECTOR_BYTES_PER_CYCLE = 128.0


class RowTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An explicit choice: rows per UB stage, and stages in flight."""

    rows: Annotated[int, within(1, MAX_ROWS)]
    stages: Annotated[int, within(1, MAX_STAGES)]

    def __post_init__(self) -> None:
        require_int(self.rows, "tile.rows", 1, MAX_ROWS)
        require_int(self.stages, "tile.stages", 1, MAX_STAGES)


def require_row_tile(value: Any) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a :class:`RowTile` or ``None``."""
    if value is not None and not isinstance(value, RowTile):
        legal = "a RowTile or null"
        raise InvalidSpec("tile is not a RowTile(rows=..., stages=...)", field="tile", legal=legal)


class RowBytes(NamedTuple):
    """UB of a row: per stage, once for all stages, and what does not grow with the rows."""

    staged: int
    unstaged: int
    fixed: int

    @property
    def least(self) -> int:
        """A single row in a single stage."""
        return self.staged + self.unstaged + self.fixed


class RowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """At most ``rows`` rows per stage, ``stages`` stages in flight; ``why`` is the report of the choice."""

    rows: int
    stages: int
    why: dict[str, Any]

    def choices(self, **more: Any) -> dict[str, Any]:
        """The JSON-able choices of a built kernel."""
        return {"rows": self.rows, "stages": self.stages, **more, "why": self.why}


def padded(elements: int, lanes: int = VECTOR_LANES) -> int:
    """``elements`` rounded up to whole vector registers of ``lanes``."""
    return -(-elements // lanes) * lanes


def plan_rows(
    target: Target,
    *,
    row_bytes: int,
    fixed_bytes: int = 0,
    rows: int | None = None,
    passes: float = 2.0,
    what: str = "a row",
    field: str = "hidden",
    given: RowTile | None = None,
    row_counts: Sequence[int] = ROW_COUNTS,
    unstaged_row_bytes: int = 0,
) -> RowPlan:
    """The best plan for rows that take ``row_bytes`` of UB per stage (all their buffers together).

    ``fixed_bytes`` of UB stay outside the ring. ``rows`` is the number of rows in all, ``None`` when dynamic.
    ``passes`` is how often the computation reads a row. Raises :class:`DoesNotFit` naming ``field`` when not
    even one row fits; ``what`` says what the row is. ``given`` overrides the choice; if it does not fit, the
    refusal names the field ``tile``. ``row_counts`` are the numbers of rows to choose from.
    ``unstaged_row_bytes`` are taken once per row of a stage, however many stages there are.
    """
    least = row_bytes + unstaged_row_bytes + fixed_bytes
    if least > target.ub_bytes:
        excess = least - target.ub_bytes
        raise DoesNotFit(
            f"{what} needs {least} bytes of UB, {excess} more than there are",
            field=field,
            legal="less",
            buffer="UB",
            excess_bytes=excess,
        )
    room = target.ub_bytes - fixed_bytes
    per_core = math.ceil((rows or NOMINAL_ROWS) / target.vector_cores)
    candidates, too_large = [], []
    for count in row_counts:
        for stages in (2, 3, 4):
            tiles = {"rows": count, "stages": stages}
            need = count * (stages * row_bytes + unstaged_row_bytes)
            if need > room:
                too_large.append(TooLarge(tiles=tiles, buffer="UB", excess_bytes=need - room))
            else:
                candidates.append(_modelled(tiles, row_bytes, per_core, passes))
    if not candidates:  # a single stage: nothing overlaps, but it works
        candidates.append(_modelled({"rows": 1, "stages": 1}, row_bytes, per_core, passes))
    if given is not None:
        excess = given.rows * (given.stages * row_bytes + unstaged_row_bytes) - room
        if excess > 0:
            raise DoesNotFit(
                f"{given.stages} stages of {given.rows} rows need {excess} bytes of UB more than there are",
                field="tile",
                legal=f"at most {room // row_bytes} rows in all stages together",
                buffer="UB",
                excess_bytes=excess,
            )
        best = _modelled(msgspec.structs.asdict(given), row_bytes, per_core, passes)
    else:
        best = min(candidates, key=lambda one: (one.cycles, one.tiles["stages"], one.tiles["rows"]))
    why = report(best, candidates, too_large, given=given is not None)
    return RowPlan(rows=best.tiles["rows"], stages=best.tiles["stages"], why=why)


def _modelled(tiles: dict[str, int], row_bytes: int, per_core: int, passes: float) -> Candidate:
    rows = min(tiles["rows"], per_core)
    move = rows * row_bytes / DMA_BYTES_PER_CYCLE
    compute = rows * row_bytes * passes / VECTOR_BYTES_PER_CYCLE
    turns = math.ceil(per_core / rows)
    if tiles["stages"] == 1:
        step, bound = move + compute + STAGE_OVERHEAD_CYCLES, "latency"
    else:
        # What is in flight hides the start of a transfer; two stages still show a third of it.
        exposed = STAGE_OVERHEAD_CYCLES / (3 * (tiles["stages"] - 1))
        step = max(move, compute) + exposed
        bound = "memory" if move >= compute else "vector"
    # The first load and the last store hide behind nothing.
    return Candidate(tiles=tiles, cycles=turns * step + move + STAGE_OVERHEAD_CYCLES, bound=bound)
