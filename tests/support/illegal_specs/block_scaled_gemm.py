"""Illegal block_scaled_gemm specs."""

from __future__ import annotations

from typing import Any

SCALED: dict[str, Any] = {"family": "block_scaled_gemm", "n": 64, "k": 128}
TILE = {"block_m": 64, "block_n": 128, "block_k": 256}
FP4 = {"dtype_a": "e2m1", "dtype_b": "e2m1"}

CASES: list[tuple[dict[str, Any], str]] = [
    (SCALED | {"m": 0}, "m"),
    (SCALED | {"n": 2**22 + 32}, "n"),
    (SCALED | {"k": 100}, "k"),
    (SCALED | {"k": 32.0}, "k"),
    (SCALED | {"dtype_a": "bf16"}, "dtype_a"),
    (SCALED | {"dtype_a": "e2m1"}, "dtype_b"),
    (SCALED | {"dtype_b": "e5m2"}, "dtype_b"),
    (SCALED | {"dtype_d": "e2m1"}, "dtype_d"),
    (SCALED | {"dtype_d": "e4m3", "n": 80}, "n"),
    (SCALED | {"dtype_d": "e4m3", "accumulate": True}, "accumulate"),
    (SCALED | FP4 | {"layout": "nn"}, "layout"),
    (SCALED | {"dtype_b": "e2m1", "layout": "tn"}, "layout"),
    (SCALED | {"alpha": 0.5}, "alpha"),
    (SCALED | {"tile": TILE | {"block_k": 96}}, "tile.block_k"),
    (SCALED | {"layout": "tn", "tile": TILE | {"block_m": 48}}, "tile.block_m"),
    (SCALED | {"dtype_d": "e4m3", "tile": TILE | {"block_n": 96}}, "tile.block_n"),
    (SCALED | {"scale_format": "fp32"}, "scale_format"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (SCALED | {"tile": {"block_m": 256, "block_n": 256, "block_k": 1024}}, "tile", "L1"),
    (SCALED | {"dtype_b": "e2m1", "tile": TILE | {"block_n": 256, "block_k": 512}}, "tile", "UB"),
    (SCALED | {"dtype_d": "e4m3", "tile": TILE | {"block_m": 256, "block_n": 256}}, "tile", "UB"),
]
