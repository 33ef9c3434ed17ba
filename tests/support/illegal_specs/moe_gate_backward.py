"""Illegal moe_gate_backward specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "moe_gate_backward", "experts": 64, "topk": 8}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"experts": 0}, "experts"),
    (BASE | {"topk": 33}, "topk"),
    (BASE | {"experts": 7}, "topk"),
    (BASE | {"scoring": "softmax"}, "scoring"),
    (BASE | {"auxiliary": None}, "auxiliary"),
    (BASE | {"index_dtype": "fp32"}, "index_dtype"),
    (BASE | {"tokens": 0}, "tokens"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (BASE | {"experts": 1024, "tile": {"rows": 64, "stages": 2}}, "tile", "UB"),
]
