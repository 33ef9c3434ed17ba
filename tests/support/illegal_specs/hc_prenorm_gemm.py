"""Illegal hc_prenorm_gemm specs."""

from __future__ import annotations

from typing import Any

PRENORM: dict[str, Any] = {"family": "hc_prenorm_gemm", "hidden": 1024}

CASES: list[tuple[dict[str, Any], str]] = [
    (PRENORM | {"tokens": 0}, "tokens"),
    (PRENORM | {"hidden": 1000}, "hidden"),
    (PRENORM | {"hidden": "dynamic"}, "hidden"),
    (PRENORM | {"columns": 20}, "columns"),
    (PRENORM | {"columns": 72}, "columns"),
    (PRENORM | {"hf32": 1}, "hf32"),
    (PRENORM | {"splits": 4}, "splits"),
    ({"family": "hc_prenorm_gemm"}, "hidden"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
