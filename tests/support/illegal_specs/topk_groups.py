"""Illegal topk_groups specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "topk_groups", "groups": 8, "group_size": 32, "topk_groups": 4}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"groups": 65}, "groups"),
    (BASE | {"group_size": 257}, "group_size"),
    (BASE | {"topk_groups": 9}, "topk_groups"),
    (BASE | {"summed": 3}, "summed"),
    (BASE | {"group_size": 1}, "summed"),
    (BASE | {"index_dtype": "fp32"}, "index_dtype"),
    (BASE | {"tokens": -5}, "tokens"),
    (BASE | {"tile": {"rows": 0, "stages": 2}}, "tile.rows"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (BASE | {"groups": 64, "group_size": 256, "tile": {"rows": 4, "stages": 1}}, "tile", "UB"),
]
