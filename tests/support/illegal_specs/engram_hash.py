"""Illegal engram_hash specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "engram_hash", "ngram": 1, "layers": 1, "tables": 1}, "ngram"),
    ({"family": "engram_hash", "ngram": 3, "layers": 65, "tables": 1}, "layers"),
    ({"family": "engram_hash", "ngram": 3, "layers": 1, "tables": 0}, "tables"),
    ({"family": "engram_hash", "ngram": 3, "layers": 1, "tables": 1, "image_mask": None}, "image_mask"),
    ({"family": "engram_hash", "ngram": 3, "layers": 1, "tables": 1, "tokens": -1}, "tokens"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "engram_hash", "ngram": 8, "layers": 16, "tables": 16}, "layers", "UB"),
]
