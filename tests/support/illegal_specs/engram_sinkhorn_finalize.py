"""Illegal engram_sinkhorn_finalize specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "engram_sinkhorn_finalize", "head_dim": 1024}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"head_dim": 96}, "head_dim"),
    (BASE | {"head_dim": 0}, "head_dim"),
    (BASE | {"eps": -1.0}, "eps"),
    (BASE | {"rows": 0}, "rows"),
    (BASE | {"tile": {"rows": 65, "stages": 2}}, "tile.rows"),
    (BASE | {"eps": 1e-39}, "eps"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (BASE | {"head_dim": 32768}, "head_dim", "UB"),
    (BASE | {"tile": {"rows": 64, "stages": 2}}, "tile", "UB"),
]
