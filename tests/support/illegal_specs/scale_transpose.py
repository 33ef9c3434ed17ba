"""Illegal scale_transpose specs."""

from __future__ import annotations

from typing import Any

TRANSPOSE: dict[str, Any] = {"family": "scale_transpose"}

CASES: list[tuple[dict[str, Any], str]] = [
    (TRANSPOSE | {"n": 100}, "n"),
    (TRANSPOSE | {"n": 0}, "n"),
    (TRANSPOSE | {"k": 2**22 + 32}, "k"),
    (TRANSPOSE | {"k": "any"}, "k"),
    (TRANSPOSE | {"batched": 2}, "batched"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
