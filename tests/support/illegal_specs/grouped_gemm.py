"""Illegal grouped_gemm specs."""

from __future__ import annotations

from typing import Any

GROUPED: dict[str, Any] = {"family": "grouped_gemm", "groups": 4, "n": 64, "k": 128}
TILE = {"block_m": 64, "block_n": 128, "block_k": 256}

CASES: list[tuple[dict[str, Any], str]] = [
    (GROUPED | {"groups": 0}, "groups"),
    (GROUPED | {"groups": 4097}, "groups"),
    (GROUPED | {"m": 2**22 + 1}, "m"),
    (GROUPED | {"n": 2**16 + 1}, "n"),
    (GROUPED | {"k": "many"}, "k"),
    (GROUPED | {"dtype_a": "fp32"}, "dtype_a"),
    (GROUPED | {"dtype_d": "int8"}, "dtype_d"),
    (GROUPED | {"layout": "tn"}, "layout"),
    (GROUPED | {"tile": TILE | {"block_k": 8}}, "tile.block_k"),
    (GROUPED | {"accumulate": True}, "accumulate"),
    (GROUPED | {"dtype_b": "fp16"}, "dtype_b"),
    (GROUPED | {"dtype_a": "e2m1", "dtype_b": "e4m3"}, "dtype_b"),
    (GROUPED | {"dtype_a": "e4m3", "dtype_b": "e4m3", "k": 100}, "k"),
    (GROUPED | {"dtype_a": "e4m3", "dtype_b": "e2m1", "layout": "nn"}, "layout"),
    (GROUPED | {"dtype_a": "e4m3", "dtype_b": "e2m1", "tile": TILE | {"block_n": 48}}, "tile.block_n"),
    ({"family": "grouped_gemm", "n": 64}, "k"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (GROUPED | {"tile": {"block_m": 256, "block_n": 256, "block_k": 1024}}, "tile", "L1"),
    (
        GROUPED
        | {
            "dtype_a": "e4m3",
            "dtype_b": "e2m1",
            "tile": {"block_m": 256, "block_n": 256, "block_k": 256},
        },
        "tile",
        "UB",
    ),
]
