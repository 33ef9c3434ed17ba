"""Illegal engram_fused_weight specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "engram_fused_weight", "hidden": 96}, "hidden"),
    ({"family": "engram_fused_weight", "hidden": 0}, "hidden"),
    ({"family": "engram_fused_weight", "hidden": 64, "streams": 0}, "streams"),
    ({"family": "engram_fused_weight", "hidden": 64, "streams": 4.0}, "streams"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
