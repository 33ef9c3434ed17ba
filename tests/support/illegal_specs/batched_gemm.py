"""Illegal batched_gemm specs."""

from __future__ import annotations

from typing import Any

BATCHED: dict[str, Any] = {
    "family": "batched_gemm",
    "expression": "bhr,hdr->bhd",
    "h": 8,
    "d": 64,
    "r": 128,
}
TILE = {"block_m": 64, "block_n": 128, "block_k": 256}

CASES: list[tuple[dict[str, Any], str]] = [
    (BATCHED | {"expression": "bhr,hdr->hbd"}, "expression"),
    (BATCHED | {"b": 0}, "b"),
    (BATCHED | {"h": 257}, "h"),
    (BATCHED | {"d": 2**14 + 1}, "d"),
    (BATCHED | {"r": "any"}, "r"),
    (BATCHED | {"dtype_a": "fp32"}, "dtype_a"),
    (BATCHED | {"dtype_d": "e5m2"}, "dtype_d"),
    (BATCHED | {"accumulate": 1}, "accumulate"),
    (BATCHED | {"tile": TILE | {"block_n": 300}}, "tile.block_n"),
    (BATCHED | {"layout": "nt"}, "layout"),
    (BATCHED | {"dtype_a": "e4m3", "r": 48}, "r"),
    (BATCHED | {"dtype_d": "e4m3"}, "dtype_d"),
    (BATCHED | {"dtype_a": "e4m3", "dtype_d": "e4m3", "d": 48}, "d"),
    (BATCHED | {"dtype_a": "e4m3", "dtype_d": "e4m3", "accumulate": True}, "accumulate"),
    (BATCHED | {"dtype_a": "e4m3", "tile": TILE | {"block_k": 96}}, "tile.block_k"),
    (BATCHED | {"dtype_a": "e4m3", "dtype_d": "e4m3", "tile": TILE | {"block_n": 96}}, "tile.block_n"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (BATCHED | {"tile": {"block_m": 256, "block_n": 256, "block_k": 1024}}, "tile", "L1"),
    (
        BATCHED | {"accumulate": True, "tile": {"block_m": 256, "block_n": 256, "block_k": 64}},
        "tile",
        "UB",
    ),
]
