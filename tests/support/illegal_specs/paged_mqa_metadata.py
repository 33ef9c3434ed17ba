"""Illegal paged_mqa_metadata specs."""

from __future__ import annotations

from typing import Any

METADATA: dict[str, Any] = {"family": "paged_mqa_metadata"}

CASES: list[tuple[dict[str, Any], str]] = [
    (METADATA | {"heads": 5}, "heads"),
    (METADATA | {"next_n": "dynamic"}, "next_n"),
    (METADATA | {"next_n": 4, "tokens": 6}, "tokens"),
    (METADATA | {"tokens": 0}, "tokens"),
    (METADATA | {"boundaries": 1}, "boundaries"),
    (METADATA | {"boundaries": 4097}, "boundaries"),
    (METADATA | {"cores": 32}, "cores"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
