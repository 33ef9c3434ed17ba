"""Illegal gemm specs."""

from __future__ import annotations

from typing import Any

GEMM: dict[str, Any] = {"family": "gemm", "n": 64, "k": 128}
TILE = {"block_m": 64, "block_n": 128, "block_k": 256}

CASES: list[tuple[dict[str, Any], str]] = [
    (GEMM | {"m": 0}, "m"),
    (GEMM | {"n": 2**22 + 1}, "n"),
    (GEMM | {"k": "Dynamic"}, "k"),
    (GEMM | {"dtype_a": "int8"}, "dtype_a"),
    (GEMM | {"dtype_a": "fp16"}, "dtype_b"),
    (GEMM | {"layout": "NT"}, "layout"),
    (GEMM | {"alpha": 1.0}, "alpha"),
    (GEMM | {"tile": TILE | {"block_m": 24}}, "tile.block_m"),
    (GEMM | {"cores": 32}, "cores"),
    ({"family": "gemm", "n": 64}, "k"),
    (GEMM | {"n": 80, "dtype_d": "e4m3"}, "n"),
    (GEMM | {"accumulate": True, "dtype_d": "e4m3"}, "accumulate"),
    (GEMM | {"tile": TILE | {"block_n": 96}, "dtype_d": "e4m3"}, "tile.block_n"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (GEMM | {"tile": {"block_m": 256, "block_n": 256, "block_k": 1024}}, "tile", "L1"),
]
