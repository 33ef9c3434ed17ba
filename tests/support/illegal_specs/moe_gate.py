"""Illegal moe_gate specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "moe_gate", "experts": 64, "topk": 8}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"experts": 1025}, "experts"),
    (BASE | {"topk": 0}, "topk"),
    (BASE | {"topk": 32, "shared_experts": 1}, "shared_experts"),
    (BASE | {"shared_experts": 3}, "shared_experts"),
    (BASE | {"scoring": "relu"}, "scoring"),
    (BASE | {"mask": 1}, "mask"),
    (BASE | {"fixed_routing": True}, "unmapped"),
    (BASE | {"groups": 5}, "groups"),
    (BASE | {"groups": 64}, "groups"),
    (BASE | {"groups": 4, "topk_groups": 5}, "topk_groups"),
    (BASE | {"groups": 16, "topk_groups": 1}, "topk"),
    (BASE | {"duplicates": 257}, "duplicates"),
    (BASE | {"index_dtype": "int8"}, "index_dtype"),
    (BASE | {"tokens": -1}, "tokens"),
    (BASE | {"tile": {"rows": 65, "stages": 2}}, "tile.rows"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (BASE | {"experts": 1024, "duplicates": 64}, "duplicates", "UB"),
    (BASE | {"experts": 1024, "tile": {"rows": 64, "stages": 4}}, "tile", "UB"),
]
