"""Illegal cast_and_back specs."""

from __future__ import annotations

from typing import Any

ROUND_TRIP: dict[str, Any] = {"family": "cast_and_back", "hidden": 256}

CASES: list[tuple[dict[str, Any], str]] = [
    (ROUND_TRIP | {"hidden": 16}, "hidden"),
    (ROUND_TRIP | {"dtype": "fp16"}, "dtype"),
    (ROUND_TRIP | {"fmt": "e5m2"}, "fmt"),
    (ROUND_TRIP | {"round_sf": 1}, "round_sf"),
    (ROUND_TRIP | {"tokens": -1}, "tokens"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (ROUND_TRIP | {"hidden": 32768, "dtype": "fp32", "tile": {"rows": 1, "stages": 2}}, "tile", "UB"),
]
