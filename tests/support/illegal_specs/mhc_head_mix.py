"""Illegal mhc_head_mix specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "mhc_head_mix", "streams": 1}, "streams"),
    ({"family": "mhc_head_mix", "streams": 5}, "streams"),
    ({"family": "mhc_head_mix", "streams": "dynamic"}, "streams"),
    ({"family": "mhc_head_mix", "tokens": 0}, "tokens"),
    ({"family": "mhc_head_mix", "eps": -0.0}, "eps"),
    ({"family": "mhc_head_mix", "eps": None}, "eps"),
    ({"family": "mhc_head_mix", "eps": 1e-39}, "eps"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
