"""Column tiles: how the rows that are added up for one token pass through UB.

A stage holds some columns of all rows of one token, so that a token of any width fits. How many columns and
how many stages there are follows from the bytes per column and the target's UB; a model ranks what fits.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec

from kaas.kernel_library.choice import Candidate, TooLarge, report
from kaas.kernel_library.spec import DTYPE_BYTES, require_int, within
from kaas.kernel_library.vector.row_plan import (
    DMA_BYTES_PER_CYCLE,
    MAX_STAGES,
    STAGE_OVERHEAD_CYCLES,
    VECTOR_BYTES_PER_CYCLE,
    VECTOR_LANES,
    padded,
)
from kaas.proto.errors import DoesNotFit, InvalidSpec
from kaas.proto.target import Target

COLUMN_TILE_SOURCE = "kaas.kernel_library.routing.column_tiles"
"""For ``Family.sources`` of a family that uses this module."""

MAX_COLUMNS = 65536
MAX_CHUNKS = 32
TRANSFER_CYCLES = 60.0
"""What one more transfer of a row costs MTE2 to start, in the model."""


class ColumnTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An explicit choice: columns of a token that a UB stage holds, and stages in flight."""

    columns: Annotated[int, within(VECTOR_LANES, MAX_COLUMNS, multiple_of=VECTOR_LANES)]
    stages: Annotated[int, within(1, MAX_STAGES)]

    def __post_init__(self) -> None:
        require_int(self.columns, "tile.columns", VECTOR_LANES, MAX_COLUMNS, multiple_of=VECTOR_LANES)
        require_int(self.stages, "tile.stages", 1, MAX_STAGES)


def require_column_tile(value: Any) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a :class:`ColumnTile` or ``None``."""
    if value is not None and not isinstance(value, ColumnTile):
        raise InvalidSpec(
            "tile is not a ColumnTile(columns=..., stages=...)", field="tile", legal="a ColumnTile or null"
        )


class TokenSum(msgspec.Struct, frozen=True, kw_only=True):
    """What a kernel does for each of ``tokens`` tokens: add up ``rows`` rows of ``hidden`` columns.

    ``column_bytes`` is what a column takes in a stage, all rows and the result together, of which
    ``loaded_bytes`` are loaded; ``stage_bytes`` are taken by a stage whatever its columns, ``fixed_bytes``
    once.
    """

    hidden: int
    rows: int
    tokens: int
    column_bytes: int
    loaded_bytes: int
    stage_bytes: int
    fixed_bytes: int


def choose_columns(
    work: TokenSum, target: Target, given: ColumnTile | None
) -> tuple[ColumnTile, dict[str, Any]]:
    """Columns and stages with the least modelled time, and the report of the choice.

    Raises :class:`DoesNotFit` if a ``given`` tile needs more UB than there is.
    """
    room = target.ub_bytes - work.fixed_bytes
    per_core = math.ceil(work.tokens / target.vector_cores)
    candidates: list[Candidate] = []
    too_large: list[TooLarge] = []
    for chunks in range(1, MAX_CHUNKS + 1):
        columns = padded(-(-work.hidden // chunks))
        for stages in range(2, MAX_STAGES + 1):
            tile = ColumnTile(columns=columns, stages=stages)
            excess = _stages_bytes(work, tile) - room
            tiles = msgspec.structs.asdict(tile)
            if excess > 0:
                too_large.append(TooLarge(tiles=tiles, buffer="UB", excess_bytes=excess))
            elif not any(one.tiles == tiles for one in candidates):
                candidates.append(_modelled(work, tile, per_core))
    if given is not None:
        excess = _stages_bytes(work, given) - room
        if excess > 0:
            raise DoesNotFit(
                f"{given.stages} stages of {given.columns} columns need {excess} bytes of UB more "
                "than there are",
                field="tile",
                legal="fewer columns or stages",
                buffer="UB",
                excess_bytes=excess,
            )
        best = _modelled(work, given, per_core)
    else:
        best = min(candidates, key=lambda one: (one.cycles, one.tiles["stages"], one.tiles["columns"]))
    why = report(best, candidates, too_large, given=given is not None)
    return ColumnTile(**best.tiles), why


def _stages_bytes(work: TokenSum, tile: ColumnTile) -> int:
    return tile.stages * (tile.columns * work.column_bytes + work.stage_bytes)


def _modelled(work: TokenSum, tile: ColumnTile, per_core: int) -> Candidate:
    transferred = min(tile.columns, work.hidden) * work.loaded_bytes
    move = transferred / DMA_BYTES_PER_CYCLE + work.rows * TRANSFER_CYCLES
    compute = tile.columns * work.rows * DTYPE_BYTES["fp32"] / VECTOR_BYTES_PER_CYCLE
    exposed = STAGE_OVERHEAD_CYCLES / (3 * max(tile.stages - 1, 1))
    step = max(move, compute) + exposed if tile.stages > 1 else move + compute + STAGE_OVERHEAD_CYCLES
    return Candidate(
        tiles=msgspec.structs.asdict(tile),
        cycles=per_core * -(-work.hidden // tile.columns) * step + move + STAGE_OVERHEAD_CYCLES,
        bound="memory" if move >= compute else "vector",
    )
