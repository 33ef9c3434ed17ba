"""Tile choice for the gemm family: a pure function of the problem and the target.

Feasibility comes from the target's on-chip buffer sizes; preference from a small model of one tile's cube,
L1 and L2 time and of how many waves of tiles the real core count needs. The constants are rates of the 950
line (4096 bf16 FMA per cycle and cube core, 256 B per cycle from L1 to L0A or L0B, about 5 TB/s of L2
bandwidth shared by 32 cores at 1.65 GHz); only their ratios matter here.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from kaas.kernel_library.choice import Candidate, TooLarge, report
from kaas.proto.errors import DoesNotFit
from kaas.proto.target import Target

NOMINAL_EXTENT = 4096
"""What a dynamic dimension is taken to be when tiles are chosen."""

FMA_PER_CYCLE = {2: 4096, 4: 1024}
L1_TO_L0_BYTES_PER_CYCLE = 256
L2_BYTES_PER_CYCLE = 90
TILE_OVERHEAD_CYCLES = 600
"""Filling the pipeline and draining the last accumulator of one tile."""

ACCUMULATOR_BYTES = 4
LEAST_MAD_K = 16
BLOCK_EXTENTS = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
MAX_BLOCK_K_BYTES = 512
"""One row of an L1 tile: a full 512 B burst from global memory."""


class GemmProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What tile choice depends on. ``m``, ``n``, ``k`` are elements, ``None`` when dynamic.

    ``vector_epilogue`` says that the accumulator leaves through UB; ``reads_output`` that the old D comes in.
    """

    m: int | None
    n: int | None
    k: int | None
    input_bytes: int
    output_bytes: int
    vector_epilogue: bool
    reads_output: bool


class GemmTiles(msgspec.Struct, frozen=True, kw_only=True):
    """The effective choice. Extents are elements; ``window_m`` is the height in tiles of the tile order."""

    block_m: int
    block_n: int
    block_k: int
    mad_k: int
    l1_stages: int
    l0c_stages: int
    window_m: int


def choose_tiles(problem: GemmProblem, target: Target) -> GemmTiles:
    """The fitting tiles with the least modelled time; raises :class:`DoesNotFit` if none fits."""
    fitting, _ = _alternatives(problem, target)
    if not fitting:  # the smallest tile says which buffer is too small
        return tiles_for_blocks(problem, target, 16, 16, LEAST_MAD_K)
    return min(fitting, key=lambda tiles: (_modelled(problem, target, tiles).cycles, -_area(tiles)))


def explain_tiles(problem: GemmProblem, target: Target, tiles: GemmTiles, *, given: bool) -> dict[str, Any]:
    """Why ``tiles``: the JSON-able report with runners-up and what was too large."""
    fitting, too_large = _alternatives(problem, target)
    candidates = [_modelled(problem, target, one) for one in fitting]
    return report(_modelled(problem, target, tiles), candidates, too_large, given=given)


def _alternatives(problem: GemmProblem, target: Target) -> tuple[list[GemmTiles], list[TooLarge]]:
    """Every block shape, completed where it fits."""
    fitting, too_large = [], []
    for block_m in _extents(problem.m):
        for block_n in _extents(problem.n):
            try:
                fitting.append(_deepest_fit(problem, target, block_m, block_n))
            except DoesNotFit as error:
                blocks = {"block_m": block_m, "block_n": block_n}
                buffer, excess = error.details["buffer"], error.details["excess_bytes"]
                too_large.append(TooLarge(tiles=blocks, buffer=buffer, excess_bytes=excess))
    return fitting, too_large


def _area(tiles: GemmTiles) -> int:
    return tiles.block_m * tiles.block_n


def tiles_for_blocks(
    problem: GemmProblem, target: Target, block_m: int, block_n: int, block_k: int
) -> GemmTiles:
    """Complete an explicit block choice; raises :class:`DoesNotFit` naming the buffer and the excess."""
    least_row_bytes = 2 * LEAST_MAD_K * problem.input_bytes
    _require_fit("L0A", block_m * least_row_bytes, target.l0a_bytes)
    _require_fit("L0B", block_n * least_row_bytes, target.l0b_bytes)
    l0c_need = block_m * block_n * ACCUMULATOR_BYTES
    _require_fit("L0C", l0c_need, target.l0c_bytes)
    stage_bytes = (block_m + block_n) * block_k * problem.input_bytes
    _require_fit("L1", 2 * stage_bytes, target.l1_bytes)
    l0c_stages = 2 if 2 * l0c_need <= target.l0c_bytes else 1
    if problem.vector_epilogue:
        # Both cores of the pair take turns on the same slots: what UB cannot double is not doubled in L0C.
        if epilogue_ub_bytes(problem, block_m, block_n, l0c_stages) > target.ub_bytes:
            l0c_stages = 1
        _require_fit("UB", epilogue_ub_bytes(problem, block_m, block_n, l0c_stages), target.ub_bytes)
    return GemmTiles(
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        mad_k=_mad_k(block_m, block_n, block_k, problem.input_bytes, target),
        l1_stages=4 if 4 * stage_bytes <= target.l1_bytes else 2,
        l0c_stages=l0c_stages,
        window_m=_window(problem, target, block_m, block_n),
    )


def epilogue_ub_bytes(problem: GemmProblem, block_m: int, block_n: int, slots: int) -> int:
    """UB of one vector core: fp32 accumulator halves, the result half, and the old D's if it is read."""
    per_element = slots * ACCUMULATOR_BYTES + problem.output_bytes * (2 if problem.reads_output else 1)
    return block_m // 2 * block_n * per_element


def _extents(extent: int | None) -> tuple[int, ...]:
    limit = BLOCK_EXTENTS[-1] if extent is None else math.ceil(extent / 16) * 16
    return tuple(block for block in BLOCK_EXTENTS if block <= limit)


def _mad_k(block_m: int, block_n: int, block_k: int, input_bytes: int, target: Target) -> int:
    """The K step of one cube instruction: double-buffered in L0A and L0B, at least two per L1 tile."""
    row_bytes = 2 * input_bytes
    limit = min(target.l0a_bytes // (block_m * row_bytes), target.l0b_bytes // (block_n * row_bytes))
    limit = min(limit, block_k // 2)
    steps = block_k // LEAST_MAD_K
    return max(
        (
            LEAST_MAD_K * step
            for step in range(1, steps + 1)
            if steps % step == 0 and LEAST_MAD_K * step <= limit
        ),
        default=LEAST_MAD_K,
    )


def _deepest_fit(problem: GemmProblem, target: Target, block_m: int, block_n: int) -> GemmTiles:
    """The block shape with the longest K step that L1 holds; raises :class:`DoesNotFit` if none does."""
    extent_k = problem.k or NOMINAL_EXTENT
    block_k = min(MAX_BLOCK_K_BYTES // problem.input_bytes, math.ceil(extent_k / 32) * 32)
    while True:
        try:
            return tiles_for_blocks(problem, target, block_m, block_n, block_k)
        except DoesNotFit as error:
            if error.details["buffer"] != "L1" or block_k < 32:
                raise
            block_k = block_k // 32 * 16


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
    waves = math.ceil(count / target.cube_cores)
    cycles = waves * (busy + exposed_store + TILE_OVERHEAD_CYCLES)
    blocks = {"block_m": tiles.block_m, "block_n": tiles.block_n, "block_k": tiles.block_k}
    return Candidate(tiles=blocks, cycles=cycles, bound=bound)


def _window(problem: GemmProblem, target: Target, block_m: int, block_n: int) -> int:
    """Tile rows that are walked together: what one wave of cores touches should be roughly square."""
    tile_rows = math.ceil((problem.m or NOMINAL_EXTENT) / block_m)
    square = math.sqrt(target.cube_cores * block_n / block_m)
    return max(1, min(tile_rows, round(square)))
