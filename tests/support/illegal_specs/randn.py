"""Illegal randn specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "randn"}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"dtype": "e4m3"}, "dtype"),
    (BASE | {"elements": 0}, "elements"),
    (BASE | {"elements": "many"}, "elements"),
    (BASE | {"tile": {"rows": 65, "stages": 2}}, "tile.rows"),
    (BASE | {"tile": {"rows": 4, "stages": 0}}, "tile.stages"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
