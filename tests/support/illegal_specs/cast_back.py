"""Illegal cast_back specs."""

from __future__ import annotations

from typing import Any

CAST_BACK: dict[str, Any] = {"family": "cast_back", "hidden": 256}

CASES: list[tuple[dict[str, Any], str]] = [
    (CAST_BACK | {"hidden": 40}, "hidden"),
    (CAST_BACK | {"granularity": "per_group"}, "granularity"),
    (CAST_BACK | {"in_dtype": "bf16"}, "in_dtype"),
    (CAST_BACK | {"scale_dtype": "e8m0"}, "scale_dtype"),
    (CAST_BACK | {"dtype": "fp16"}, "dtype"),
    (CAST_BACK | {"granularity": "per_channel", "col_major": True}, "col_major"),
    (CAST_BACK | {"tokens": "many"}, "tokens"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (CAST_BACK | {"hidden": 32768, "dtype": "fp32", "tile": {"rows": 1, "stages": 2}}, "tile", "UB"),
]
