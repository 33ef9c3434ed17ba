"""Illegal mqa_logits specs."""

from __future__ import annotations

from typing import Any

LOGITS: dict[str, Any] = {"family": "mqa_logits"}

CASES: list[tuple[dict[str, Any], str]] = [
    (LOGITS | {"heads": 0}, "heads"),
    (LOGITS | {"heads": 6}, "heads"),
    (LOGITS | {"heads": 68}, "heads"),
    (LOGITS | {"heads": "dynamic"}, "heads"),
    (LOGITS | {"head_dim": 96}, "head_dim"),
    (LOGITS | {"head_dim": 128.0}, "head_dim"),
    (LOGITS | {"dtype": "bf16"}, "dtype"),
    (LOGITS | {"dtype": "e5m2"}, "dtype"),
    (LOGITS | {"tokens": 0}, "tokens"),
    (LOGITS | {"tokens": 2**22 + 1}, "tokens"),
    (LOGITS | {"keys": -1}, "keys"),
    (LOGITS | {"columns": 0}, "columns"),
    (LOGITS | {"clean": 1}, "clean"),
    (LOGITS | {"page_size": 64}, "page_size"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
