"""Illegal scale_layout specs."""

from __future__ import annotations

from typing import Any

LAYOUT: dict[str, Any] = {"family": "scale_layout"}

CASES: list[tuple[dict[str, Any], str]] = [
    (LAYOUT | {"mn": 0}, "mn"),
    (LAYOUT | {"k": 2**22 + 1}, "k"),
    (LAYOUT | {"source": "e8m0"}, "source"),
    (LAYOUT | {"major": "m"}, "major"),
    (LAYOUT | {"gran_mn": 256}, "gran_mn"),
    (LAYOUT | {"gran_mn": 3}, "gran_mn"),
    (LAYOUT | {"groups": "n"}, "groups"),
    (LAYOUT | {"batched": True, "groups": "k"}, "groups"),
    ({"family": "scale_layout", "mn": 2**22 + 1}, "mn"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
