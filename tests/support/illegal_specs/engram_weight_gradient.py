"""Illegal engram_weight_gradient specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "engram_weight_gradient", "hidden": 96}, "hidden"),
    ({"family": "engram_weight_gradient", "hidden": 64, "streams": 9}, "streams"),
    ({"family": "engram_weight_gradient", "hidden": 64, "partials": 0}, "partials"),
    ({"family": "engram_weight_gradient", "hidden": 64, "partials": 2000}, "partials"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "engram_weight_gradient", "hidden": 64, "partials": 1024}, "partials", "UB"),
]
