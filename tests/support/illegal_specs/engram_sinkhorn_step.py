"""Illegal engram_sinkhorn_step specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "engram_sinkhorn_step", "head_dim": 1024}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"head_dim": 96}, "head_dim"),
    (BASE | {"eps": 1.5}, "eps"),
    (BASE | {"partials": 0}, "partials"),
    (BASE | {"partials": 1025}, "partials"),
    (BASE | {"rows": "any"}, "rows"),
    (BASE | {"tile": {"rows": 65, "stages": 2}}, "tile.rows"),
    (BASE | {"eps": 1e-39}, "eps"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (BASE | {"head_dim": 32768}, "head_dim", "UB"),
    (BASE | {"tile": {"rows": 64, "stages": 2}}, "tile", "UB"),
]
