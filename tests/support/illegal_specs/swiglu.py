"""Illegal swiglu specs."""

from __future__ import annotations

from typing import Any

SWIGLU = {"family": "swiglu", "hidden": 128}
CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "swiglu", "hidden": 72}, "hidden"),
    (SWIGLU | {"dtype": "fp16"}, "dtype"),
    (SWIGLU | {"dtype_out": "e4m3"}, "dtype_out"),
    (SWIGLU | {"scaling": True}, "scaling"),
    (SWIGLU | {"clamp": -1.0}, "clamp"),
    (SWIGLU | {"count_clamped": True}, "count_clamped"),
    (SWIGLU | {"experts": 4097}, "experts"),
    (SWIGLU | {"token_alignment": 64}, "token_alignment"),
    (SWIGLU | {"experts": 2, "token_alignment": 0}, "token_alignment"),
    (SWIGLU | {"tokens": 0}, "tokens"),
    (SWIGLU | {"cast": "e5m2"}, "cast"),
    (SWIGLU | {"cast": "e4m3", "dtype_out": "fp32"}, "dtype_out"),
    (SWIGLU | {"cast": "e4m3", "hidden": 80}, "hidden"),
    (SWIGLU | {"cast": "e4m3", "scale_dtype": "e8m0x2"}, "round_sf"),
    (SWIGLU | {"col_major": True}, "col_major"),
    (SWIGLU | {"scale_dtype": "e8m0x2"}, "scale_dtype"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "swiglu", "hidden": 32768, "dtype": "fp32"}, "hidden", "UB"),
    ({"family": "swiglu", "hidden": 32768, "cast": "e4m3"}, "hidden", "UB"),
]
