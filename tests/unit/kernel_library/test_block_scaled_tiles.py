"""Tiles of block-scaled products: operands with their scales, and what passes UB, fit every part."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kaas.kernel_library.cube.gemm_tiles import (
    STAGED_ROW_PADDING,
    GemmTiles,
    effective_tiles,
    epilogue_ub_bytes,
)
from kaas.kernel_library.families.block_scaled_gemm import BlockScaledGemmSpec, problem_of
from kaas.kernel_library.targets import TARGETS
from kaas.proto.target import Target

PAIRS: tuple[dict[str, Any], ...] = ({}, {"dtype_a": "e2m1", "dtype_b": "e2m1"}, {"dtype_b": "e2m1"})
RESULTS: tuple[dict[str, Any], ...] = ({}, {"dtype_d": "e4m3"}, {"dtype_d": "fp32", "alpha": True})
EXTENTS = ((1, 7168, 2048), (64, 2112, 7168), ("dynamic", 4096, "dynamic"), (300, 64, 32))


def tiles_of(spec: BlockScaledGemmSpec, target: Target) -> GemmTiles:
    return effective_tiles(problem_of(spec), target, spec.tile)


@pytest.mark.parametrize("part", sorted(TARGETS))
def test_chosen_tiles_fit_every_buffer_of_every_part(part: str) -> None:
    target = TARGETS[part]
    for pair, result, (m, n, k) in itertools.product(PAIRS, RESULTS, EXTENTS):
        spec = BlockScaledGemmSpec(m=m, n=n, k=k, **pair, **result)
        problem, tiles = problem_of(spec), tiles_of(spec, target)
        assert tiles.block_k % tiles.mad_k == 0
        assert tiles.mad_k % 64 == 0
        rows = tiles.block_m + tiles.block_n
        stage = rows * tiles.block_k * problem.input_bytes + rows * tiles.block_k // 32
        assert tiles.l1_stages * stage <= target.l1_bytes
        assert 2 * tiles.block_m * tiles.mad_k * problem.input_bytes <= target.l0a_bytes
        assert 2 * tiles.block_n * tiles.mad_k * problem.input_bytes <= target.l0b_bytes
        assert tiles.l0c_stages * tiles.block_m * tiles.block_n * 4 <= target.l0c_bytes
        used = problem.staged_bytes * (tiles.block_n + STAGED_ROW_PADDING) * tiles.block_k
        if problem.vector_epilogue:
            used += epilogue_ub_bytes(problem, tiles.block_m, tiles.block_n, tiles.l0c_stages)
        assert used <= target.ub_bytes


def test_a_quantised_result_has_whole_pairs_of_scales_in_a_tile() -> None:
    for target in TARGETS.values():
        assert tiles_of(BlockScaledGemmSpec(n=32, k=32, dtype_d="e4m3"), target).block_n % 64 == 0
