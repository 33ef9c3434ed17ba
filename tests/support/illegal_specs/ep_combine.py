"""Illegal ep_combine specs."""

from __future__ import annotations

from typing import Any

TOPOLOGY: dict[str, Any] = {"ranks": 8, "experts": 64, "topk": 4, "max_tokens_per_rank": 128}
SPEC: dict[str, Any] = {"family": "ep_combine", "topology": TOPOLOGY, "hidden": 64}

CASES: list[tuple[dict[str, Any], str]] = [
    (SPEC | {"topology": TOPOLOGY | {"topk": 0}}, "topology.topk"),
    (SPEC | {"hidden": 40}, "hidden"),
    (SPEC | {"biases": 3}, "biases"),
    (SPEC | {"per_rank": True}, "per_rank"),
    (SPEC | {"index_dtype": "int8"}, "index_dtype"),
    (SPEC | {"tokens": 500}, "tokens"),
    (SPEC | {"tile": {"columns": 60, "stages": 2}}, "tile.columns"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (SPEC | {"hidden": 16384, "tile": {"columns": 16384, "stages": 2}}, "tile", "UB"),
]
