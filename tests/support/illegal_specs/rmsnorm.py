"""Illegal rmsnorm specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "rmsnorm", "hidden": 72}, "hidden"),
    ({"family": "rmsnorm", "hidden": "dynamic"}, "hidden"),
    ({"family": "rmsnorm", "hidden": 64, "eps": -1e-9}, "eps"),
    ({"family": "rmsnorm", "hidden": 64, "tokens": 0}, "tokens"),
    ({"family": "rmsnorm", "hidden": 64, "out_scale": 1e6}, "out_scale"),
    ({"family": "rmsnorm", "hidden": 64, "rstd": 1}, "rstd"),
    ({"family": "rmsnorm", "hidden": 64, "cast": "e5m2"}, "cast"),
    ({"family": "rmsnorm", "hidden": 64, "cast": "e4m3", "dtype": "fp16"}, "dtype"),
    ({"family": "rmsnorm", "hidden": 80, "cast": "e2m1"}, "hidden"),
    ({"family": "rmsnorm", "hidden": 64, "cast": "e2m1", "scale_dtype": "e8m0x2"}, "round_sf"),
    ({"family": "rmsnorm", "hidden": 64, "bf16_output": True}, "bf16_output"),
    ({"family": "rmsnorm", "hidden": 64, "round_sf": True}, "round_sf"),
    ({"family": "rmsnorm", "hidden": 64, "eps": 1e-40}, "eps"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "rmsnorm", "hidden": 32768, "dtype": "fp32", "residual": True}, "hidden", "UB"),
]
