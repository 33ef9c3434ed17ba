"""Illegal rmsnorm_backward specs."""

from __future__ import annotations

from typing import Any

BACKWARD = {"family": "rmsnorm_backward", "hidden": 128}
CASES: list[tuple[dict[str, Any], str]] = [
    (BACKWARD | {"hidden": 72}, "hidden"),
    (BACKWARD | {"dtype": "e4m3"}, "dtype"),
    (BACKWARD | {"dtype_dweight": "int8"}, "dtype_dweight"),
    (BACKWARD | {"weight": False, "accumulate": True}, "accumulate"),
    (BACKWARD | {"weight": False, "dtype_dweight": "bf16"}, "dtype_dweight"),
    (BACKWARD | {"out_scale": -65537.0}, "out_scale"),
    (BACKWARD | {"residual_grad": 1}, "residual_grad"),
    (BACKWARD | {"tokens": -1}, "tokens"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "rmsnorm_backward", "hidden": 32768}, "hidden", "UB"),
    ({"family": "rmsnorm_backward", "hidden": 32768, "dtype": "fp32", "weight": False}, "hidden", "UB"),
]
