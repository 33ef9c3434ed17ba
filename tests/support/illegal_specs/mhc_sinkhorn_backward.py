"""Illegal mhc_sinkhorn_backward specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "mhc_sinkhorn_backward", "streams": 1}, "streams"),
    ({"family": "mhc_sinkhorn_backward", "streams": 5}, "streams"),
    ({"family": "mhc_sinkhorn_backward", "streams": "dynamic"}, "streams"),
    ({"family": "mhc_sinkhorn_backward", "tokens": 0}, "tokens"),
    ({"family": "mhc_sinkhorn_backward", "repeat": 0}, "repeat"),
    ({"family": "mhc_sinkhorn_backward", "repeat": 33}, "repeat"),
    ({"family": "mhc_sinkhorn_backward", "eps": -1e-9}, "eps"),
    ({"family": "mhc_sinkhorn_backward", "eps": 0.0}, "eps"),
    ({"family": "mhc_sinkhorn_backward", "eps": 1e-40}, "eps"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "mhc_sinkhorn_backward", "repeat": 32}, "repeat", "UB"),
]
