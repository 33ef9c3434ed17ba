"""Illegal topk_select specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "topk_select", "topk": 512}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"topk": 0}, "topk"),
    (BASE | {"topk": 4097}, "topk"),
    (BASE | {"topk": True}, "topk"),
    (BASE | {"vocab": 0}, "vocab"),
    (BASE | {"vocab": 2 * 1024 * 1024}, "vocab"),
    (BASE | {"vocab": "any"}, "vocab"),
    (BASE | {"rows": 0}, "rows"),
    (BASE | {"sorted_index": 1}, "sorted_index"),
    (BASE | {"end": "rows"}, "end"),
    (BASE | {"output_idx_offset": 0}, "output_idx_offset"),
    (BASE | {"return_value": None}, "return_value"),
    (BASE | {"nan_flags": "trap"}, "nan_flags"),
    (BASE | {"parts": 0}, "parts"),
    (BASE | {"parts": 33}, "parts"),
    (BASE | {"tile": {"chunk": 128, "slots": 2}}, "tile.chunk"),
    (BASE | {"tile": {"chunk": 32768, "slots": 2}}, "tile.chunk"),
    (BASE | {"tile": {"chunk": 3072, "slots": 2}}, "tile.chunk"),
    (BASE | {"tile": {"chunk": 1024, "slots": 0}}, "tile.slots"),
    (BASE | {"tile": {"chunk": 1024, "slots": 7}}, "tile.slots"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (BASE | {"topk": 4096, "tile": {"chunk": 16384, "slots": 6}}, "tile", "UB"),
    (BASE | {"topk": 2048, "parts": 32, "tile": {"chunk": 16384, "slots": 6}}, "tile", "UB"),
]
