"""Illegal ep_layout specs."""

from __future__ import annotations

from typing import Any

TOPOLOGY: dict[str, Any] = {"ranks": 8, "experts": 64, "topk": 4, "max_tokens_per_rank": 128}
SPEC: dict[str, Any] = {"family": "ep_layout", "topology": TOPOLOGY}
WIDE: dict[str, Any] = TOPOLOGY | {"ranks": 512, "experts": 512, "nodes": 4}

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "ep_layout"}, "topology"),
    (SPEC | {"topology": 8}, "topology"),
    (SPEC | {"topology": TOPOLOGY | {"ranks": 5}}, "topology.ranks"),
    (SPEC | {"topology": {"ranks": 8, "experts": 64, "topk": 4}}, "topology.max_tokens_per_rank"),
    (SPEC | {"index_dtype": "int16"}, "index_dtype"),
    (SPEC | {"tokens": 0}, "tokens"),
    (SPEC | {"tokens": 129}, "tokens"),
    (SPEC | {"tile": {"rows": 65, "stages": 2}}, "tile.rows"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (SPEC | {"topology": WIDE, "tile": {"rows": 64, "stages": 4}}, "tile", "UB"),
]
