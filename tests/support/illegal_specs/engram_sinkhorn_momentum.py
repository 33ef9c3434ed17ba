"""Illegal engram_sinkhorn_momentum specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "engram_sinkhorn_momentum"}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"dtype": "fp16"}, "dtype"),
    (BASE | {"momentum_dtype": "fp16"}, "momentum_dtype"),
    (BASE | {"beta1": 1.5}, "beta1"),
    (BASE | {"nesterov": None}, "nesterov"),
    (BASE | {"rows": -1}, "rows"),
    (BASE | {"tile": {"rows": 65, "stages": 2}}, "tile.rows"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (BASE | {"tile": {"rows": 64, "stages": 4}}, "tile", "UB"),
]
