"""Illegal mhc_norm_weight_backward specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "mhc_norm_weight_backward"}, "hidden"),
    ({"family": "mhc_norm_weight_backward", "hidden": 96}, "hidden"),
    ({"family": "mhc_norm_weight_backward", "hidden": 131136}, "hidden"),
    ({"family": "mhc_norm_weight_backward", "hidden": "dynamic"}, "hidden"),
    ({"family": "mhc_norm_weight_backward", "hidden": 4096, "columns": 0}, "columns"),
    ({"family": "mhc_norm_weight_backward", "hidden": 4096, "columns": 65}, "columns"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
