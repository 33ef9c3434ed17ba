"""Illegal normalize_weight specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "normalize_weight", "topk": 8}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"topk": 0}, "topk"),
    (BASE | {"topk": 129}, "topk"),
    (BASE | {"tokens": "any"}, "tokens"),
    (BASE | {"tile": {"rows": 1, "stages": 5}}, "tile.stages"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (BASE | {"topk": 128, "tile": {"rows": 4, "stages": 2}}, "tile", "UB"),
]
