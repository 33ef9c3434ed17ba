"""Illegal engram_gate_backward specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "engram_gate_backward", "hidden": 96, "streams": 1}, "hidden"),
    ({"family": "engram_gate_backward", "hidden": 64, "streams": 4}, "hidden"),
    ({"family": "engram_gate_backward", "hidden": 576, "streams": 9}, "streams"),
    ({"family": "engram_gate_backward", "hidden": 256, "clamp": -1.0}, "clamp"),
    ({"family": "engram_gate_backward", "hidden": 256, "partials": 0}, "partials"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "engram_gate_backward", "hidden": 32768}, "hidden", "UB"),
]
