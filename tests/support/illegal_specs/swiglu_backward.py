"""Illegal swiglu_backward specs."""

from __future__ import annotations

from typing import Any

BACKWARD = {"family": "swiglu_backward", "hidden": 128}
CASES: list[tuple[dict[str, Any], str]] = [
    (BACKWARD | {"hidden": 72}, "hidden"),
    (BACKWARD | {"dtype": "fp16"}, "dtype"),
    (BACKWARD | {"dtype_grad": "e4m3"}, "dtype_grad"),
    (BACKWARD | {"dtype_out": "e4m3"}, "dtype_out"),
    (BACKWARD | {"scaling": True}, "scaling"),
    (BACKWARD | {"clamp": 2e30}, "clamp"),
    (BACKWARD | {"recompute": 1}, "recompute"),
    (BACKWARD | {"token_alignment": 32}, "token_alignment"),
    (BACKWARD | {"hidden": 80, "dtype": "e4m3"}, "hidden"),
    (BACKWARD | {"hidden": 96, "cast": "e4m3"}, "hidden"),
    (BACKWARD | {"cast": "e2m1", "scale_dtype": "e8m0x2"}, "round_sf"),
    (BACKWARD | {"round_sf": True}, "round_sf"),
    (BACKWARD | {"tokens": True}, "tokens"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "swiglu_backward", "hidden": 32768, "dtype": "fp32"}, "hidden", "UB"),
    ({"family": "swiglu_backward", "hidden": 24576, "cast": "e4m3"}, "hidden", "UB"),
]
