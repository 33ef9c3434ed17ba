"""Attention tiles: how many rows of queries and how many keys meet at a time; a pure function of the target.

A tile is ``rows`` queries whose running sums stay in UB; it meets its keys in blocks. What fits the buffers
is ranked by a small model of the time per block: the slowest of the cube, the feed of L0, the loads from L2
and the vector cores. The rates are those of the 950 line; only their ratios matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from kaas.kernel_library.choice import Candidate, TooLarge, report
from kaas.kernel_library.cube.gemm_tiles import FMA_PER_CYCLE, L1_TO_L0_BYTES_PER_CYCLE, L2_BYTES_PER_CYCLE
from kaas.kernel_library.spec import require_int, within
from kaas.proto.errors import DoesNotFit, InvalidSpec
from kaas.proto.target import Target

CHUNK = 128
"""Columns of one accumulator: keys of a block at most, and values that are weighed at a time."""
L0_SLOTS = 2
WEIGHT_SLOTS = 2
MAX_KEY_SLOTS = 4
MAX_ACCUMULATOR_SLOTS = 4
MAX_ROWS = 128
ELEMENT_BYTES = 2
ACCUMULATOR_BYTES = 4
VECTOR_LANES = 64
LSE_ROW_BYTES = 32
FIXED_UB_BYTES = 256 * (4 + WEIGHT_SLOTS)
"""Maxima, sums, limits and factors of a tile's rows."""

NOMINAL_KEYS = 4096
"""How many keys a tile is taken to meet."""
BLOCK_OVERHEAD_CYCLES = 500
TILE_OVERHEAD_CYCLES = 2500
CYCLES_PER_SCORE_ROW = 20
CYCLES_PER_SCORE_REGISTER = 6
CYCLES_PER_VALUE_REGISTER = 3


class AttentionTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An explicit choice: rows of queries in a tile, keys in a block."""

    rows: Annotated[int, within(16, MAX_ROWS, multiple_of=16)]
    keys: Annotated[int, within(16, CHUNK, multiple_of=16)]

    def __post_init__(self) -> None:
        require_int(self.rows, "tile.rows", 16, MAX_ROWS, multiple_of=16)
        require_int(self.keys, "tile.keys", 16, CHUNK, multiple_of=16)


def require_attention_tile(value: Any) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is an :class:`AttentionTile` or ``None``."""
    if value is not None and not isinstance(value, AttentionTile):
        legal = "an AttentionTile or null"
        message = "tile is not an AttentionTile(rows=..., keys=...)"
        raise InvalidSpec(message, field="tile", legal=legal)


class AttentionTiles(msgspec.Struct, frozen=True, kw_only=True):
    """The effective choice.

    ``step_k`` is how much of a query's width one cube instruction multiplies; ``key_slots`` blocks of keys
    and ``accumulator_slots`` accumulators are in flight.
    """

    rows: int
    keys: int
    d_qk: int
    d_v: int
    shared_values: bool
    step_k: int
    key_slots: int
    accumulator_slots: int

    def choices(self) -> dict[str, int]:
        """What was chosen, in plain numbers."""
        names = ("rows", "keys", "step_k", "key_slots", "accumulator_slots")
        return {name: getattr(self, name) for name in names}


def plan_attention(
    target: Target,
    *,
    d_qk: int,
    d_v: int,
    shared_values: bool,
    row_counts: Sequence[int],
    key_counts: Sequence[int],
    matrices: int,
    matrix_rows: int,
    given: AttentionTile | None = None,
    more_ub_bytes: int = 0,
) -> tuple[AttentionTiles, dict[str, Any]]:
    """The fitting tiles with the least modelled time, and the report of the choice.

    ``shared_values`` says that values are the first ``d_v`` columns of the keys. A launch is taken to have
    ``matrices`` of ``matrix_rows`` rows of queries, each with keys of its own; ``more_ub_bytes`` is what the
    family needs of UB besides. Raises :class:`DoesNotFit` naming the buffer if ``given`` does not fit, or
    nothing does.
    """
    fitting: list[tuple[Candidate, AttentionTiles]] = []
    too_large: list[TooLarge] = []
    refusal: DoesNotFit | None = None
    for rows in (given.rows,) if given else row_counts:
        for keys in (given.keys,) if given else key_counts:
            try:
                tiles = _completed(target, rows, keys, d_qk, d_v, shared_values, more_ub_bytes)
            except DoesNotFit as error:
                refusal = error
                buffer, excess = error.details["buffer"], error.details["excess_bytes"]
                extents = {"rows": rows, "keys": keys}
                too_large.append(TooLarge(tiles=extents, buffer=buffer, excess_bytes=excess))
            else:
                fitting.append((_modelled(target, tiles, matrices, matrix_rows), tiles))
    if not fitting:
        assert refusal is not None
        raise refusal
    candidate, tiles = min(fitting, key=lambda one: (one[0].cycles, -one[1].rows, -one[1].keys))
    why = report(candidate, [one for one, _ in fitting], too_large, given=given is not None)
    return tiles, why


def _completed(
    target: Target, rows: int, keys: int, d_qk: int, d_v: int, shared_values: bool, more_ub_bytes: int
) -> AttentionTiles:
    """The tile with as many slots as fit; raises :class:`DoesNotFit`."""
    key_bytes = keys * (d_qk + (0 if shared_values else d_v)) * ELEMENT_BYTES
    fixed_l1 = rows * (d_qk + WEIGHT_SLOTS * keys) * ELEMENT_BYTES
    _require_fit("L1", fixed_l1 + 2 * key_bytes, target.l1_bytes)
    accumulator = rows * CHUNK * ACCUMULATOR_BYTES
    _require_fit("L0C", 2 * accumulator, target.l0c_bytes)
    fixed_ub = (
        rows // 2 * (d_v * (ACCUMULATOR_BYTES + ELEMENT_BYTES) + LSE_ROW_BYTES)
        + WEIGHT_SLOTS * keys * (rows // 2 + 1) * ELEMENT_BYTES
        + FIXED_UB_BYTES
        + more_ub_bytes
    )
    _require_fit("UB", fixed_ub + accumulator, target.ub_bytes)
    accumulator_slots = min(
        MAX_ACCUMULATOR_SLOTS,
        target.l0c_bytes // accumulator,
        (target.ub_bytes - fixed_ub) // (accumulator // 2),
    )
    # Keys and values share L0B's slots if blocks are whole, and divide L0B otherwise.
    room = CHUNK if keys == CHUNK else target.l0b_bytes // (L0_SLOTS * ELEMENT_BYTES * keys) - CHUNK
    steps = (step for step in range(16, min(room, CHUNK) + 1, 16) if d_qk % step == 0)
    return AttentionTiles(
        rows=rows,
        keys=keys,
        d_qk=d_qk,
        d_v=d_v,
        shared_values=shared_values,
        step_k=max(steps),
        key_slots=min(MAX_KEY_SLOTS, (target.l1_bytes - fixed_l1) // key_bytes),
        accumulator_slots=accumulator_slots,
    )


def _require_fit(buffer: str, need: int, limit: int) -> None:
    if need > limit:
        raise DoesNotFit(
            f"the tile needs {need} bytes of {buffer} but the target has {limit}: {need - limit} too many",
            field="tile",
            legal="fewer rows or keys",
            buffer=buffer,
            excess_bytes=need - limit,
        )


def _modelled(target: Target, tiles: AttentionTiles, matrices: int, matrix_rows: int) -> Candidate:
    rows, keys, width = tiles.rows, tiles.keys, tiles.d_qk + tiles.d_v
    stored = tiles.d_qk if tiles.shared_values else width
    fed = (rows + keys) * tiles.d_qk + keys * tiles.d_v + tiles.d_v // CHUNK * rows * keys
    scores = math.ceil(keys / VECTOR_LANES) * CYCLES_PER_SCORE_REGISTER + CYCLES_PER_SCORE_ROW
    times = {
        "cube": rows * keys * width / FMA_PER_CYCLE[ELEMENT_BYTES],
        "L1 to L0": fed * ELEMENT_BYTES / L1_TO_L0_BYTES_PER_CYCLE,
        "L2": keys * stored * ELEMENT_BYTES / L2_BYTES_PER_CYCLE,
        "vectors": rows / 2 * (scores + tiles.d_v / VECTOR_LANES * CYCLES_PER_VALUE_REGISTER),
    }
    bound = max(times, key=times.__getitem__)
    # Two blocks in flight are both in use while the weights of one are made: loads hide behind nothing.
    exposed = times["L2"] if tiles.key_slots == 2 and bound != "L2" else 0.0
    per_block = times[bound] + exposed + BLOCK_OVERHEAD_CYCLES
    waves = math.ceil(matrices * math.ceil(matrix_rows / rows) / target.cube_cores)
    cycles = waves * (math.ceil(NOMINAL_KEYS / keys) * per_block + TILE_OVERHEAD_CYCLES)
    return Candidate(tiles={"rows": rows, "keys": keys}, cycles=cycles, bound=bound)
