"""Illegal mla_decode specs."""

from __future__ import annotations

from typing import Any

DECODE: dict[str, Any] = {"family": "mla_decode", "heads": 64}
TILE = {"rows": 64, "keys": 64}

CASES: list[tuple[dict[str, Any], str]] = [
    (DECODE | {"heads": 8}, "heads"),
    (DECODE | {"heads": 72}, "heads"),
    (DECODE | {"heads": 144}, "heads"),
    (DECODE | {"d_qk": 192}, "d_qk"),
    (DECODE | {"s_q": 0}, "s_q"),
    (DECODE | {"s_q": 17}, "s_q"),
    (DECODE | {"page": 1}, "page"),
    (DECODE | {"page": 72}, "page"),
    (DECODE | {"page": "dynamic"}, "page"),
    (DECODE | {"causal": 1}, "causal"),
    (DECODE | {"requests": 0}, "requests"),
    (DECODE | {"split": 0}, "split"),
    (DECODE | {"split": 96}, "split"),
    (DECODE | {"tile": TILE | {"rows": 24}}, "tile.rows"),
    (DECODE | {"tile": TILE | {"keys": 256}}, "tile.keys"),
    (DECODE | {"tile": TILE | {"keys": 96}}, "tile.keys"),
    (DECODE | {"split": 64, "tile": TILE | {"keys": 128}}, "tile.keys"),
    (DECODE | {"window": 128}, "window"),
    ({"family": "mla_decode", "heads": 16, "split": 2048, "requests": 2**18}, "requests"),
    ({"family": "mla_decode", "requests": 2**24}, "requests"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (DECODE | {"tile": {"rows": 128, "keys": 128}}, "tile", "UB"),
    (DECODE | {"split": 4096, "tile": {"rows": 128, "keys": 64}}, "tile", "UB"),
]
