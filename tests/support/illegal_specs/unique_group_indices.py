"""Illegal unique_group_indices specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "unique_group_indices", "topk": 8}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"topk": 0}, "topk"),
    (BASE | {"topk": 33}, "topk"),
    (BASE | {"index_dtype": "int16"}, "index_dtype"),
    (BASE | {"tokens": 0}, "tokens"),
    (BASE | {"tile": {"rows": 4, "stages": 5}}, "tile.stages"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (BASE | {"topk": 32, "tile": {"rows": 64, "stages": 2}}, "tile", "UB"),
]
