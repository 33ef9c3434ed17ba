"""Illegal rope specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "rope", "heads": 0, "width": 64}, "heads"),
    ({"family": "rope", "heads": 1, "width": 72}, "width"),
    ({"family": "rope", "heads": 1, "width": 64, "rotary": 48}, "rotary"),
    ({"family": "rope", "heads": 1, "width": 64, "rotary": 128}, "rotary"),
    ({"family": "rope", "heads": 1, "width": 64, "part": "middle"}, "part"),
    ({"family": "rope", "heads": 1, "width": 64, "positions": "int16"}, "positions"),
    ({"family": "rope", "heads": 1, "width": 64, "table": 0}, "table"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "rope", "heads": 256, "width": 256, "rotary": 256, "dtype": "fp32"}, "heads", "UB"),
    ({"family": "rope", "heads": 128, "width": 64, "tile": {"rows": 16, "stages": 2}}, "tile", "UB"),
]
