"""Illegal fused_mapping specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "fused_mapping", "experts": 256, "topk": 8}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"experts": 0}, "experts"),
    (BASE | {"experts": 1025}, "experts"),
    (BASE | {"topk": 129}, "topk"),
    (BASE | {"alignment": 48}, "alignment"),
    (BASE | {"alignment": 131072}, "alignment"),
    (BASE | {"index_dtype": "uint8"}, "index_dtype"),
    (BASE | {"tokens": 0}, "tokens"),
    (BASE | {"expanded": -1}, "expanded"),
    (BASE | {"tile": {"rows": 65, "stages": 2}}, "tile.rows"),
    ({"family": "fused_mapping", "experts": 256, "topk": 8, "tokens": 2**26 + 1}, "tokens"),
    ({"family": "fused_mapping", "experts": 256, "topk": 8, "expanded": 2**30 + 1}, "expanded"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
