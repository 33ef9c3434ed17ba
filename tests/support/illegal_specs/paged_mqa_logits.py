"""Illegal paged_mqa_logits specs."""

from __future__ import annotations

from typing import Any

LOGITS: dict[str, Any] = {"family": "paged_mqa_logits"}

CASES: list[tuple[dict[str, Any], str]] = [
    (LOGITS | {"heads": 2}, "heads"),
    (LOGITS | {"head_dim": 256}, "head_dim"),
    (LOGITS | {"dtype": "fp8"}, "dtype"),
    (LOGITS | {"page_size": 32}, "page_size"),
    (LOGITS | {"page_size": "dynamic"}, "page_size"),
    (LOGITS | {"layout": "fused"}, "layout"),
    (LOGITS | {"next_n": 0}, "next_n"),
    (LOGITS | {"next_n": 65}, "next_n"),
    (LOGITS | {"next_n": 3, "tokens": 10}, "tokens"),
    (LOGITS | {"tokens": True}, "tokens"),
    (LOGITS | {"pages": 0}, "pages"),
    (LOGITS | {"table_columns": 0}, "table_columns"),
    (LOGITS | {"columns": "many"}, "columns"),
    (LOGITS | {"clean": None}, "clean"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
