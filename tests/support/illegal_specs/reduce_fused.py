"""Illegal reduce_fused specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "reduce_fused", "hidden": 8, "topk": 2}, "hidden"),
    ({"family": "reduce_fused", "hidden": 64, "topk": 0}, "topk"),
    ({"family": "reduce_fused", "hidden": 64, "topk": 2, "dtype": "fp32"}, "dtype_y"),
    ({"family": "reduce_fused", "hidden": 64, "topk": 2, "scale": True}, "scale"),
    ({"family": "reduce_fused", "hidden": 64, "topk": 2, "weights": 1}, "weights"),
    (
        {"family": "reduce_fused", "hidden": 64, "topk": 2, "tile": {"columns": 96, "stages": 2}},
        "tile.columns",
    ),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (
        {"family": "reduce_fused", "hidden": 8192, "topk": 8, "tile": {"columns": 8192, "stages": 2}},
        "tile",
        "UB",
    ),
]
