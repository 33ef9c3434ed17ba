"""Illegal mhc_norm_mixes_backward specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "mhc_norm_mixes_backward"}, "hidden"),
    ({"family": "mhc_norm_mixes_backward", "hidden": 0}, "hidden"),
    ({"family": "mhc_norm_mixes_backward", "hidden": 4100}, "hidden"),
    ({"family": "mhc_norm_mixes_backward", "hidden": 4096, "columns": 65}, "columns"),
    ({"family": "mhc_norm_mixes_backward", "hidden": 4096, "columns": "dynamic"}, "columns"),
    ({"family": "mhc_norm_mixes_backward", "hidden": 4096, "splits": 2}, "splits"),
    ({"family": "mhc_norm_mixes_backward", "hidden": 4096, "eps": 2.0}, "eps"),
    ({"family": "mhc_norm_mixes_backward", "hidden": 4096, "tokens": 0}, "tokens"),
    ({"family": "mhc_norm_mixes_backward", "hidden": 4096, "eps": 5e-324}, "eps"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
