"""Illegal k_grouped_gemm specs."""

from __future__ import annotations

from typing import Any

GROUPED: dict[str, Any] = {"family": "k_grouped_gemm", "groups": 4, "m": 64, "n": 128}
TILE = {"block_m": 64, "block_n": 128, "block_k": 256}

CASES: list[tuple[dict[str, Any], str]] = [
    (GROUPED | {"groups": 2.0}, "groups"),
    (GROUPED | {"m": 2**14 + 1}, "m"),
    (GROUPED | {"n": 0}, "n"),
    (GROUPED | {"k": 2**22 + 1}, "k"),
    (GROUPED | {"dtype_a": "fp32"}, "dtype_a"),
    (GROUPED | {"dtype_d": "int32"}, "dtype_d"),
    (GROUPED | {"tile": TILE | {"block_m": 0}}, "tile.block_m"),
    (GROUPED | {"accumulate": False}, "accumulate"),
    (GROUPED | {"dtype_a": "e4m3", "tile": TILE | {"block_m": 48}}, "tile.block_m"),
    (GROUPED | {"dtype_a": "e4m3", "tile": TILE | {"block_k": 160}}, "tile.block_k"),
    ({"family": "k_grouped_gemm", "m": 64}, "n"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (GROUPED | {"tile": {"block_m": 256, "block_n": 256, "block_k": 1024}}, "tile", "L1"),
    (GROUPED | {"dtype_d": "bf16", "tile": {"block_m": 256, "block_n": 256, "block_k": 64}}, "tile", "UB"),
]
