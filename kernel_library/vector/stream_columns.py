"""Stream columns: how a small matrix [streams, hidden] is cut into pieces for the vector cores."""

from __future__ import annotations

from kaas.kernel_library.choice import Candidate, TooLarge, report
from kaas.kernel_library.vector.row_plan import (
    DMA_BYTES_PER_CYCLE,
    MAX_STAGES,
    STAGE_OVERHEAD_CYCLES,
    VECTOR_LANES,
    RowPlan,
)
from kaas.proto.errors import DoesNotFit
from kaas.proto.target import Target

STREAM_COLUMN_SOURCE = "kaas.kernel_library.vector.stream_columns"
"""For ``Family.sources`` of a family that uses this module."""


def plan_stream_columns(
    target: Target, *, streams: int, hidden: int, column_bytes: int, field: str
) -> tuple[int, RowPlan]:
    """Columns of a piece of one stream, and the plan whose rows are pieces, one to a stage.

    ``hidden`` is a multiple of 64 and a piece divides it. ``column_bytes`` is what a column of a piece takes
    of UB. Raises :class:`DoesNotFit` naming ``field`` if not even two stages of 64 columns fit.
    """
    candidates: list[Candidate] = []
    too_large: list[TooLarge] = []
    for columns in (64 * count for count in range(1, hidden // 64 + 1) if hidden // 64 % count == 0):
        for stages in range(2, MAX_STAGES + 1):
            tiles = {"columns": columns, "stages": stages}
            excess = stages * columns * column_bytes - target.ub_bytes
            if excess > 0:
                too_large.append(TooLarge(tiles=tiles, buffer="UB", excess_bytes=excess))
                continue
            turns = -(-streams * hidden // columns // target.vector_cores)
            move = columns * column_bytes / DMA_BYTES_PER_CYCLE
            cycles = turns * (move + STAGE_OVERHEAD_CYCLES / stages) + STAGE_OVERHEAD_CYCLES
            candidates.append(Candidate(tiles=tiles, cycles=cycles, bound="memory"))
    if not candidates:
        need = 2 * VECTOR_LANES * column_bytes
        excess = need - target.ub_bytes
        raise DoesNotFit(
            f"two pieces of {VECTOR_LANES} columns need {need} bytes of UB, {excess} more than there are",
            field=field,
            legal="less",
            buffer="UB",
            excess_bytes=excess,
        )
    best = min(candidates, key=lambda one: (one.cycles, one.tiles["stages"], one.tiles["columns"]))
    why = report(best, candidates, too_large)
    return best.tiles["columns"], RowPlan(rows=1, stages=best.tiles["stages"], why=why)
