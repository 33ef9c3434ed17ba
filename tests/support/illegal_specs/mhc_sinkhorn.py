"""Illegal mhc_sinkhorn specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "mhc_sinkhorn", "streams": 1}, "streams"),
    ({"family": "mhc_sinkhorn", "streams": 5}, "streams"),
    ({"family": "mhc_sinkhorn", "streams": "dynamic"}, "streams"),
    ({"family": "mhc_sinkhorn", "tokens": 0}, "tokens"),
    ({"family": "mhc_sinkhorn", "repeat": 0}, "repeat"),
    ({"family": "mhc_sinkhorn", "repeat": 33}, "repeat"),
    ({"family": "mhc_sinkhorn", "eps": -1e-9}, "eps"),
    ({"family": "mhc_sinkhorn", "eps": 0.0}, "eps"),
    ({"family": "mhc_sinkhorn", "eps": 1e-40}, "eps"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
