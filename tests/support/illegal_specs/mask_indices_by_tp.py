"""Illegal mask_indices_by_tp specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "mask_indices_by_tp", "topk": 8}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"topk": 0}, "topk"),
    (BASE | {"topk": 129}, "topk"),
    (BASE | {"index_dtype": "uint8"}, "index_dtype"),
    (BASE | {"tokens": False}, "tokens"),
    ({"family": "mask_indices_by_tp", "topk": 8, "tokens": 2**28}, "tokens"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
