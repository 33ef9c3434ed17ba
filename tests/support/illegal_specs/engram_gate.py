"""Illegal engram_gate specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "engram_gate", "hidden": 96}, "hidden"),
    ({"family": "engram_gate", "hidden": 64, "streams": 9}, "streams"),
    ({"family": "engram_gate", "hidden": 64, "eps": -1.0}, "eps"),
    ({"family": "engram_gate", "hidden": 64, "clamp": 2.0}, "clamp"),
    ({"family": "engram_gate", "hidden": 64, "in_place": True}, "in_place"),
    ({"family": "engram_gate", "hidden": 64, "eps": 1e-300}, "eps"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "engram_gate", "hidden": 32768}, "hidden", "UB"),
]
