"""Illegal group_count specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "group_count", "groups": 256, "topk": 8}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"groups": 0}, "groups"),
    (BASE | {"groups": 4097}, "groups"),
    (BASE | {"topk": 129}, "topk"),
    (BASE | {"index_dtype": "int16"}, "index_dtype"),
    (BASE | {"tokens": 0}, "tokens"),
    (BASE | {"tile": {"rows": 4, "stages": 0}}, "tile.stages"),
    ({"family": "group_count", "groups": 256, "topk": 8, "tokens": 2**28}, "tokens"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
