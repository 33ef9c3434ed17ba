"""Illegal topk_gate specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "topk_gate", "experts": 0, "topk": 1}, "experts"),
    ({"family": "topk_gate", "experts": 1025, "topk": 8}, "experts"),
    ({"family": "topk_gate", "experts": 64, "topk": 33}, "topk"),
    ({"family": "topk_gate", "experts": 4, "topk": 5}, "topk"),
    ({"family": "topk_gate", "experts": 64, "topk": 8, "index_dtype": "int16"}, "index_dtype"),
    ({"family": "topk_gate", "experts": 64, "topk": 8, "tokens": 0}, "tokens"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
