"""Sparse attention tiles: 64 query heads of a token meet the keys that an index list names, block by block.

The heads of a token share their keys, so a tile is 64 heads of one token. What is chosen is how many keys a
block has: 128 keep the cube busier and rescale the running output half as often; 64 leave more blocks in
flight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from kaas.kernel_library.attention.attention_tiles import (
    ACCUMULATOR_BYTES,
    CHUNK,
    ELEMENT_BYTES,
    FIXED_UB_BYTES,
    MAX_ACCUMULATOR_SLOTS,
    MAX_KEY_SLOTS,
    VECTOR_LANES,
    WEIGHT_SLOTS,
    AttentionTiles,
)
from kaas.kernel_library.attention.kv_records import RecordFormat, held_bytes
from kaas.kernel_library.choice import Candidate, TooLarge, report
from kaas.kernel_library.cube.gemm_tiles import FMA_PER_CYCLE, L1_TO_L0_BYTES_PER_CYCLE
from kaas.kernel_library.spec import require_one_of
from kaas.proto.errors import DoesNotFit, InvalidSpec
from kaas.proto.target import Target

ROWS = 64
"""Heads of a tile."""
D_V = 512
KEY_COUNTS = (128, 64)
PIECE = 16
"""Tokens that a vector core gathers at a time."""
STAGES = 2
LEAST_KEY_SLOTS = 3
"""One block gives scores, one is weighed, one is gathered."""
INDEX_SLOTS = 2
MAX_HEADS = 128

GATHER_CYCLES_PER_TOKEN = 60
"""What the scalar pipe takes to read an index and issue a transfer, and the vector pipe to widen a record."""
CYCLES_PER_SCORE_ROW = 20
CYCLES_PER_SCORE_REGISTER = 6
CYCLES_PER_VALUE_REGISTER = 3
BLOCK_OVERHEAD_CYCLES = 500
TILE_OVERHEAD_CYCLES = 2500


class SparseTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An explicit choice: keys in a block."""

    keys: Annotated[int, msgspec.Meta(ge=64, le=128, multiple_of=64)]

    def __post_init__(self) -> None:
        require_one_of(self.keys, "tile.keys", KEY_COUNTS)


def require_sparse_tile(value: Any) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a :class:`SparseTile` or ``None``."""
    if value is not None and not isinstance(value, SparseTile):
        raise InvalidSpec("tile is not a SparseTile(keys=...)", field="tile", legal="a SparseTile or null")


def plan_sparse_attention(
    target: Target,
    *,
    d_qk: int,
    formats: Sequence[RecordFormat],
    topks: Sequence[int],
    tokens: int,
    given: SparseTile | None = None,
) -> tuple[AttentionTiles, dict[str, Any]]:
    """The fitting tiles with the least modelled time, and the report of the choice.

    ``formats`` and ``topks`` are those of the sets of keys; a launch is taken to have ``tokens`` tiles.
    Raises :class:`DoesNotFit` naming the buffer if ``given`` does not fit, or nothing does.
    """
    fitting: list[tuple[Candidate, AttentionTiles]] = []
    too_large: list[TooLarge] = []
    refusal: DoesNotFit | None = None
    for keys in (given.keys,) if given else KEY_COUNTS:
        try:
            tiles = _completed(target, keys, d_qk, formats)
        except DoesNotFit as error:
            refusal = error
            buffer, excess = error.details["buffer"], error.details["excess_bytes"]
            too_large.append(TooLarge(tiles={"keys": keys}, buffer=buffer, excess_bytes=excess))
        else:
            fitting.append((_modelled(target, tiles, topks, tokens), tiles))
    if not fitting:
        assert refusal is not None
        raise refusal
    candidate, tiles = min(fitting, key=lambda one: (one[0].cycles, -one[1].keys))
    return tiles, report(candidate, [one for one, _ in fitting], too_large, given=given is not None)


def _completed(target: Target, keys: int, d_qk: int, formats: Sequence[RecordFormat]) -> AttentionTiles:
    """The tile with as many slots as fit; raises :class:`DoesNotFit`."""
    key_bytes = keys * d_qk * ELEMENT_BYTES
    fixed_l1 = ROWS * (d_qk + WEIGHT_SLOTS * keys) * ELEMENT_BYTES
    _require_fit("L1", fixed_l1 + LEAST_KEY_SLOTS * key_bytes, target.l1_bytes)
    accumulator = ROWS * CHUNK * ACCUMULATOR_BYTES
    _require_fit("L0C", 2 * accumulator, target.l0c_bytes)
    half = ROWS // 2
    fixed_ub = (
        half * D_V * (ACCUMULATOR_BYTES + ELEMENT_BYTES)
        + half * 2 * 32  # rows of lse and of maxima, 32 bytes each at most
        + WEIGHT_SLOTS * keys * (half + 1) * ELEMENT_BYTES
        + INDEX_SLOTS * 2 * CHUNK * 4  # indices and their masks
        + MAX_HEADS * 4
        + FIXED_UB_BYTES
        + held_bytes(STAGES, PIECE, d_qk, formats)
        + STAGES * (PIECE + 1) * d_qk * ELEMENT_BYTES
    )
    _require_fit("UB", fixed_ub + accumulator, target.ub_bytes)
    return AttentionTiles(
        rows=ROWS,
        keys=keys,
        d_qk=d_qk,
        d_v=D_V,
        shared_values=True,
        step_k=next(step for step in range(CHUNK, 0, -16) if d_qk % step == 0),
        key_slots=min(MAX_KEY_SLOTS, (target.l1_bytes - fixed_l1) // key_bytes),
        accumulator_slots=min(
            MAX_ACCUMULATOR_SLOTS,
            target.l0c_bytes // accumulator,
            (target.ub_bytes - fixed_ub) // (accumulator // 2),
        ),
    )


def _require_fit(buffer: str, need: int, limit: int) -> None:
    if need > limit:
        raise DoesNotFit(
            f"the tile needs {need} bytes of {buffer} but the target has {limit}: {need - limit} too many",
            field="tile",
            legal="fewer keys",
            buffer=buffer,
            excess_bytes=need - limit,
        )


def _modelled(target: Target, tiles: AttentionTiles, topks: Sequence[int], tokens: int) -> Candidate:
    keys, width = tiles.keys, tiles.d_qk + tiles.d_v
    fed = (ROWS + keys) * tiles.d_qk + keys * tiles.d_v + tiles.d_v // CHUNK * ROWS * keys
    scores = math.ceil(keys / VECTOR_LANES) * CYCLES_PER_SCORE_REGISTER + CYCLES_PER_SCORE_ROW
    summed = ROWS // 2 * (scores + tiles.d_v / VECTOR_LANES * CYCLES_PER_VALUE_REGISTER)
    times = {
        "cube": ROWS * keys * width / FMA_PER_CYCLE[ELEMENT_BYTES],
        "L1 to L0": fed * ELEMENT_BYTES / L1_TO_L0_BYTES_PER_CYCLE,
        "vectors": summed + keys / 2 * GATHER_CYCLES_PER_TOKEN,
    }
    bound = max(times, key=times.__getitem__)
    blocks = sum(math.ceil(topk / keys) for topk in topks)
    waves = math.ceil(tokens / target.cube_cores)
    cycles = waves * (blocks * (times[bound] + BLOCK_OVERHEAD_CYCLES) + TILE_OVERHEAD_CYCLES)
    return Candidate(tiles={"keys": keys}, cycles=cycles, bound=bound)
