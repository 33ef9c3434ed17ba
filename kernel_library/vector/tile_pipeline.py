"""Tile pipeline: a matrix in tiles of some rows and some columns, one tile per UB stage.

For vector kernels whose rows belong together (square blocks, columns of blocks, results by column), where a
whole row of all of them does not fit UB.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kaas.kernel_library.choice import Candidate, TooLarge, report
from kaas.kernel_library.spec import require_one_of
from kaas.kernel_library.vector.row_pipeline import ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import (
    DMA_BYTES_PER_CYCLE,
    NOMINAL_ROWS,
    STAGE_OVERHEAD_CYCLES,
    VECTOR_BYTES_PER_CYCLE,
    RowPlan,
    RowTile,
)
from kaas.proto.errors import DoesNotFit
from kaas.proto.target import Target

TILE_KERNEL_SOURCES = (*ROW_KERNEL_SOURCES, "kaas.kernel_library.vector.tile_pipeline")
"""Modules that decide what a family built on this pipeline generates."""

BURST_OVERHEAD_BYTES = 64
"""What each piece of a strided transfer costs, as if it were that much longer."""


class TilePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Tiles of ``rows`` x ``columns``, ``stages`` of them in flight; ``why`` is the report of the choice."""

    rows: int
    columns: int
    stages: int
    why: dict[str, Any]

    def choices(self, **more: Any) -> dict[str, Any]:
        """The JSON-able choices of a built kernel."""
        tiles = {"rows": self.rows, "columns": self.columns, "stages": self.stages}
        return {**tiles, **more, "why": self.why}


BLOCK_ROW_COUNTS = (32, 64)
"""Rows of a tile that quantises blocks of 32 rows."""


def tile_row_counts(granularity: str, scale_dtype: str) -> tuple[int, ...]:
    """Rows that a tile of a cast can have: packed scales of columns are written by whole pairs of blocks."""
    packs_rows = granularity == "per_channel" and scale_dtype == "e8m0x2"
    return BLOCK_ROW_COUNTS[1:] if packs_rows else BLOCK_ROW_COUNTS


def require_tile_rows(tile: RowTile | None, row_counts: Sequence[int]) -> None:
    """Raise :class:`InvalidSpec` unless an explicit ``tile`` has as many rows as these kernels can take."""
    if tile is not None:
        require_one_of(tile.rows, "tile.rows", row_counts)


def plan_tiles(
    target: Target,
    *,
    width: int,
    stage_bytes: Callable[[int, int], int],
    row_counts: Sequence[int],
    column_counts: Sequence[int],
    bytes_per_value: float,
    fixed_bytes: int = 0,
    rows: int | None = None,
    passes: float = 2.0,
    what: str = "a tile",
    field: str = "hidden",
    given: RowTile | None = None,
) -> TilePlan:
    """The best tiles of a matrix ``width`` values wide, of ``rows`` rows (``None`` when dynamic).

    ``stage_bytes(rows, columns)`` is the UB of a stage, ``bytes_per_value`` what is moved per value.
    ``column_counts`` that are wider than the matrix needs are left out. ``given`` fixes rows and stages; its
    rows are some of ``row_counts`` (:func:`require_tile_rows`). Raises :class:`DoesNotFit` naming ``field``
    (or ``tile``) and the excess when nothing fits.
    """
    room = target.ub_bytes - fixed_bytes
    narrow = [count for count in column_counts if count < width]
    wide = [count for count in column_counts if count >= width]
    candidates, too_large = [], []
    for tile_rows in row_counts if given is None else (given.rows,):
        for columns in (*narrow, *wide[:1]):
            for stages in (2, 3, 4) if given is None else (given.stages,):
                tiles = {"rows": tile_rows, "columns": columns, "stages": stages}
                need = stage_bytes(tile_rows, columns) * stages
                if need > room:
                    too_large.append(TooLarge(tiles=tiles, buffer="UB", excess_bytes=need - room))
                    continue
                candidates.append(_modelled(tiles, target, width, rows, bytes_per_value, passes))
    if not candidates:
        nearest = min(one.excess_bytes for one in too_large)
        raise DoesNotFit(
            f"{what} needs {nearest + room} bytes of UB, {nearest} more than there are",
            field=field if given is None else "tile",
            legal="less",
            buffer="UB",
            excess_bytes=nearest,
        )
    best = min(candidates, key=lambda one: (one.cycles, *one.tiles.values()))
    return TilePlan(**best.tiles, why=report(best, candidates, too_large, given=given is not None))


def _modelled(
    tiles: dict[str, int], target: Target, width: int, rows: int | None, bytes_per_value: float, passes: float
) -> Candidate:
    columns = min(tiles["columns"], width)
    groups = math.ceil((rows or NOMINAL_ROWS) / tiles["rows"])
    turns = math.ceil(groups * math.ceil(width / tiles["columns"]) / target.vector_cores)
    payload = tiles["rows"] * columns * bytes_per_value
    move = (payload + 2 * tiles["rows"] * BURST_OVERHEAD_BYTES) / DMA_BYTES_PER_CYCLE
    compute = payload * passes / VECTOR_BYTES_PER_CYCLE
    if tiles["stages"] == 1:
        step, bound = move + compute + STAGE_OVERHEAD_CYCLES, "latency"
    else:
        step = max(move, compute) + STAGE_OVERHEAD_CYCLES / (3 * (tiles["stages"] - 1))
        bound = "memory" if move >= compute else "vector"
    return Candidate(tiles=tiles, cycles=turns * step + move + STAGE_OVERHEAD_CYCLES, bound=bound)


def tile_pipeline(
    plan: TilePlan,
    cores: int,
    height: Any,
    width: int,
    *,
    load: Any,
    compute: Any,
    store: Any,
    prepare: Any = None,
) -> Any:
    """A macro ``run(state, core)``: a matrix of ``height`` x ``width`` goes through the ring of ``plan``.

    ``load``, ``compute`` and ``store`` are macros of ``(state, slot, row, rows, column, columns)``: the tile
    that starts at ``row``, ``column`` and has ``rows`` x ``columns`` values, fewer at the edges. They issue
    on MTE2, V and MTE3 only. Tiles go along a row first.
    """
    import tilelang.ascend.language as T

    across = math.ceil(width / plan.columns)

    def placed(task: Any) -> Any:
        @T.macro
        def at_place(state: Any, slot: Any, unit: Any, count: Any) -> None:
            row = T.alloc_var("int32")
            rows = T.alloc_var("int32")
            column = T.alloc_var("int32")
            columns = T.alloc_var("int32")
            row = T.truncdiv(unit, across) * plan.rows
            rows = T.min(plan.rows, height - row)
            column = T.truncmod(unit, across) * plan.columns
            columns = T.min(plan.columns, width - column)
            task(state, slot, row, rows, column, columns)

        return at_place

    one_tile = RowPlan(rows=1, stages=plan.stages, why=plan.why)
    tiles = T.truncdiv(height + plan.rows - 1, plan.rows) * across
    return row_pipeline(
        one_tile,
        cores,
        tiles,
        load=placed(load),
        compute=placed(compute),
        store=placed(store),
        prepare=prepare,
    )


def matrix_pipeline(
    plan: RowPlan | TilePlan, cores: int, height: Any, width: int, *, load: Any, compute: Any, store: Any
) -> Any:
    """:func:`tile_pipeline` for either plan: with a :class:`RowPlan` a tile is some whole rows."""
    import tilelang.ascend.language as T

    if isinstance(plan, TilePlan):
        return tile_pipeline(plan, cores, height, width, load=load, compute=compute, store=store)

    def whole(task: Any) -> Any:
        @T.macro
        def rows(state: Any, slot: Any, first: Any, count: Any) -> None:
            task(state, slot, first, count, 0, width)

        return rows

    return row_pipeline(plan, cores, height, load=whole(load), compute=whole(compute), store=whole(store))
