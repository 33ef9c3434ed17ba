"""Illegal mla_prefill specs; every legal tile fits."""

from __future__ import annotations

from typing import Any

PREFILL: dict[str, Any] = {"family": "mla_prefill", "heads": 12}
TILE = {"rows": 64, "keys": 64}

CASES: list[tuple[dict[str, Any], str]] = [
    (PREFILL | {"heads": 0}, "heads"),
    (PREFILL | {"heads": 257}, "heads"),
    (PREFILL | {"group": 0}, "group"),
    (PREFILL | {"group": 5}, "group"),
    (PREFILL | {"group": 24}, "group"),
    (PREFILL | {"d_qk": 576}, "d_qk"),
    (PREFILL | {"causal": None}, "causal"),
    (PREFILL | {"tokens": -1}, "tokens"),
    (PREFILL | {"tile": TILE | {"rows": 144}}, "tile.rows"),
    (PREFILL | {"tile": TILE | {"keys": 8}}, "tile.keys"),
    (PREFILL | {"d_v": 128}, "d_v"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
