"""Tile choice for matrix products: a pure function of the problem and the target.

Feasibility comes from the target's on-chip buffer sizes; preference from a small model of one tile's cube,
L1 and L2 time and of how many waves of tiles the real core count needs. The constants are rates of the 950
line (4096 bf16 FMA per cycle and cube core, twice that for fp8 and four times for fp4, 256 B per cycle from
L1 to L0A or L0B, about 5 TB/s of L2 bandwidth shared by 32 cores at 1.65 GHz); only their ratios matter here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from kaas.kernel_library.choice import Candidate, TooLarge, report
from kaas.kernel_library.cube.gemm_fields import GemmTile
from kaas.proto.errors import DoesNotFit
from kaas.proto.target import Target

NOMINAL_EXTENT = 4096
"""What a dynamic dimension is taken to be when tiles are chosen."""

FMA_PER_CYCLE = {0.5: 16384, 1: 8192, 2: 4096, 4: 1024}
"""By the bytes of an operand's element."""
L1_TO_L0_BYTES_PER_CYCLE = 256
L2_BYTES_PER_CYCLE = 90
TILE_OVERHEAD_CYCLES = 600
"""Filling the pipeline and draining the last accumulator of one tile."""

ACCUMULATOR_BYTES = 4
SCALE_BLOCK = 32
STAGED_ROW_PADDING = 16
BLOCK_EXTENTS = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
MAX_BLOCK_K_BYTES = 512
"""One row of an L1 tile: a full 512 B burst from global memory."""


class GemmProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What tile choice depends on. ``m``, ``n``, ``k`` are elements, ``None`` when dynamic.

    ``vector_epilogue`` says that the accumulator leaves through UB; ``reads_output`` that the old D comes in.
    ``matrices`` is how many such products one launch computes. ``input_bytes`` is half a byte for fp4. Tiles
    are multiples of ``m_multiple`` and ``n_multiple``, steps along K of ``k_multiple``. ``scaled`` operands
    bring a byte of scale for 32 values. ``result_row_bytes`` is UB that a row of a half tile takes beside its
    elements, ``staged_bytes`` UB for each element of a [block_n, block_k] tile of B that passes the vectors.
    """

    m: int | None
    n: int | None
    k: int | None
    input_bytes: float
    output_bytes: int
    vector_epilogue: bool
    reads_output: bool
    matrices: int = 1
    m_multiple: int = 16
    n_multiple: int = 16
    k_multiple: int = 16
    scaled: bool = False
    result_row_bytes: int = 0
    staged_bytes: float = 0.0


class GemmTiles(msgspec.Struct, frozen=True, kw_only=True):
    """The effective choice. Extents are elements; ``window_m`` is the height in tiles of the tile order."""

    block_m: int
    block_n: int
    block_k: int
    mad_k: int
    l1_stages: int
    l0c_stages: int
    window_m: int


def effective_tiles(problem: GemmProblem, target: Target, tile: GemmTile | None) -> GemmTiles:
    """``tile`` completed, or without one the chosen tiles. Raises :class:`DoesNotFit`."""
    if tile is None:
        return choose_tiles(problem, target)
    return tiles_for_blocks(problem, target, tile.block_m, tile.block_n, tile.block_k)


def require_fit(problem: GemmProblem, target: Target, tile: GemmTile | None) -> None:
    """Raise :class:`DoesNotFit` if no tile (or not the given one) fits.

    Every request is asked this, so it ends with the first that does and does not look for the best.
    """
    if tile is None and any(isinstance(one, GemmTiles) for one in _attempts(problem, target)):
        return
    effective_tiles(problem, target, tile)


def choose_tiles(problem: GemmProblem, target: Target) -> GemmTiles:
    """The fitting tiles with the least modelled time; raises :class:`DoesNotFit` if none fits."""
    fitting, _ = _alternatives(problem, target)
    if not fitting:  # the smallest tile says which buffer is too small
        least = problem.m_multiple, problem.n_multiple, problem.k_multiple
        return tiles_for_blocks(problem, target, *least)
    return min(fitting, key=lambda tiles: (_modelled(problem, target, tiles).cycles, -_area(tiles)))


def explain_tiles(problem: GemmProblem, target: Target, tiles: GemmTiles, *, given: bool) -> dict[str, Any]:
    """Why ``tiles``: the JSON-able report with runners-up and what was too large."""
    fitting, too_large = _alternatives(problem, target)
    candidates = [_modelled(problem, target, one) for one in fitting]
    return report(_modelled(problem, target, tiles), candidates, too_large, given=given)


def _alternatives(problem: GemmProblem, target: Target) -> tuple[list[GemmTiles], list[TooLarge]]:
    """Every block shape, completed where it fits."""
    fitting: list[GemmTiles] = []
    too_large: list[TooLarge] = []
    for one in _attempts(problem, target):
        if isinstance(one, TooLarge):
            too_large.append(one)
        else:
            fitting.append(one)
    return fitting, too_large


def _attempts(problem: GemmProblem, target: Target) -> Iterator[GemmTiles | TooLarge]:
    for block_m in _extents(problem.m, problem.m_multiple):
        for block_n in _extents(problem.n, problem.n_multiple):
            try:
                yield _deepest_fit(problem, target, block_m, block_n)
            except DoesNotFit as error:
                blocks = {"block_m": block_m, "block_n": block_n}
                buffer, excess = error.details["buffer"], error.details["excess_bytes"]
                yield TooLarge(tiles=blocks, buffer=buffer, excess_bytes=excess)


def _area(tiles: GemmTiles) -> int:
    return tiles.block_m * tiles.block_n


def tiles_for_blocks(
    problem: GemmProblem, target: Target, block_m: int, block_n: int, block_k: int
) -> GemmTiles:
    """Complete an explicit block choice; raises :class:`DoesNotFit` naming the buffer and the excess."""
    least_row_bytes = 2 * problem.k_multiple * problem.input_bytes
    _require_fit("L0A", int(block_m * least_row_bytes), target.l0a_bytes)
    _require_fit("L0B", int(block_n * least_row_bytes), target.l0b_bytes)
    l0c_need = block_m * block_n * ACCUMULATOR_BYTES
    _require_fit("L0C", l0c_need, target.l0c_bytes)
    stage_bytes = _stage_bytes(problem, block_m, block_n, block_k)
    _require_fit("L1", 2 * stage_bytes, target.l1_bytes)
    l0c_stages = 2 if 2 * l0c_need <= target.l0c_bytes else 1
    staged = int(problem.staged_bytes * (block_n + STAGED_ROW_PADDING) * block_k)
    if problem.vector_epilogue:
        # Both cores of the pair take turns on the same slots: what UB cannot double is not doubled in L0C.
        if staged + epilogue_ub_bytes(problem, block_m, block_n, l0c_stages) > target.ub_bytes:
            l0c_stages = 1
        staged += epilogue_ub_bytes(problem, block_m, block_n, l0c_stages)
    _require_fit("UB", staged, target.ub_bytes)
    return GemmTiles(
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        mad_k=_mad_k(problem, block_m, block_n, block_k, target),
        l1_stages=4 if 4 * stage_bytes <= target.l1_bytes else 2,
        l0c_stages=l0c_stages,
        window_m=_window(problem, target, block_m, block_n),
    )


def epilogue_ub_bytes(problem: GemmProblem, block_m: int, block_n: int, slots: int) -> int:
    """UB of one vector core: fp32 accumulator halves, the result half, and the old D's if it is read."""
    per_element = slots * ACCUMULATOR_BYTES + problem.output_bytes * (2 if problem.reads_output else 1)
    return block_m // 2 * (block_n * per_element + problem.result_row_bytes)


def _stage_bytes(problem: GemmProblem, block_m: int, block_n: int, block_k: int) -> int:
    """L1 bytes of one stage: both operands, and their scales."""
    elements = (block_m + block_n) * block_k
    return int(elements * problem.input_bytes) + (elements // SCALE_BLOCK if problem.scaled else 0)


def _extents(extent: int | None, multiple: int) -> tuple[int, ...]:
    limit = BLOCK_EXTENTS[-1] if extent is None else max(math.ceil(extent / 16) * 16, multiple)
    return tuple(block for block in BLOCK_EXTENTS if block <= limit and block % multiple == 0)


def _mad_k(problem: GemmProblem, block_m: int, block_n: int, block_k: int, target: Target) -> int:
    """The K step of one cube instruction: double-buffered in L0A and L0B, at least two per L1 tile."""
    row_bytes, least = 2 * problem.input_bytes, problem.k_multiple
    limit = min(target.l0a_bytes / (block_m * row_bytes), target.l0b_bytes / (block_n * row_bytes))
    limit = min(limit, block_k // 2)
    steps = block_k // least
    return max(
        (least * step for step in range(1, steps + 1) if steps % step == 0 and least * step <= limit),
        default=least,
    )


def _deepest_fit(problem: GemmProblem, target: Target, block_m: int, block_n: int) -> GemmTiles:
    """The block shape with the longest K step that L1 holds; raises :class:`DoesNotFit` if none does."""
    extent_k = problem.k or NOMINAL_EXTENT
    least = problem.k_multiple
    block_k = int(min(MAX_BLOCK_K_BYTES / problem.input_bytes, math.ceil(extent_k / least / 2) * least * 2))
    while True:
        try:
            return tiles_for_blocks(problem, target, block_m, block_n, block_k)
        except DoesNotFit as error:
            depends_on_k = error.details["buffer"] == "L1" or problem.staged_bytes > 0
            if not depends_on_k or block_k < 2 * least:
                raise
            block_k = block_k // (2 * least) * least


def _require_fit(buffer: str, need: int, limit: int) -> None:
    if need > limit:
        raise DoesNotFit(
            f"the tile needs {need} bytes of {buffer} but the target has {limit}: {need - limit} too many",
            field="tile",
            legal="smaller block extents",
            buffer=buffer,
            excess_bytes=need - limit,
        )


def _modelled(problem: GemmProblem, target: Target, tiles: GemmTiles) -> Candidate:
    extent_m, extent_n, extent_k = (extent or NOMINAL_EXTENT for extent in (problem.m, problem.n, problem.k))
    steps = math.ceil(extent_k / tiles.block_k) * tiles.block_k
    rows = tiles.block_m + tiles.block_n
    times = {
        "cube": steps * _area(tiles) / FMA_PER_CYCLE[problem.input_bytes],
        "L1 to L0": rows * steps * problem.input_bytes / L1_TO_L0_BYTES_PER_CYCLE,
        "L2": rows * extent_k * problem.input_bytes / L2_BYTES_PER_CYCLE,
    }
    bound = max(times, key=times.__getitem__)
    busy = times[bound]
    store = _area(tiles) * max(problem.output_bytes, 2) / L2_BYTES_PER_CYCLE
    # With one accumulator the cube waits while it is stored; with two only the last store shows.
    exposed_store = store if tiles.l0c_stages == 1 else max(0.0, store - busy)
    count = math.ceil(extent_m / tiles.block_m) * math.ceil(extent_n / tiles.block_n)
    waves = math.ceil(problem.matrices * count / target.cube_cores)
    cycles = waves * (busy + exposed_store + TILE_OVERHEAD_CYCLES)
    blocks = {"block_m": tiles.block_m, "block_n": tiles.block_n, "block_k": tiles.block_k}
    return Candidate(tiles=blocks, cycles=cycles, bound=bound)


def _window(problem: GemmProblem, target: Target, block_m: int, block_n: int) -> int:
    """Tile rows that are walked together: what one wave of cores touches should be roughly square."""
    tile_rows = math.ceil((problem.m or NOMINAL_EXTENT) / block_m)
    square = math.sqrt(target.cube_cores * block_n / block_m)
    return max(1, min(tile_rows, round(square)))
