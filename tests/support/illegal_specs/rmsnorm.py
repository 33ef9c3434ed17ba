"""Illegal rmsnorm specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "rmsnorm", "hidden": 72}, "hidden"),
    ({"family": "rmsnorm", "hidden": "dynamic"}, "hidden"),
    ({"family": "rmsnorm", "hidden": 64, "eps": -1e-9}, "eps"),
    ({"family": "rmsnorm", "hidden": 64, "tokens": 0}, "tokens"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "rmsnorm", "hidden": 32768, "dtype": "fp32", "residual": True}, "hidden", "UB"),
]
