"""Illegal expand_to_fused specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "expand_to_fused", "hidden": 24, "topk": 2}, "hidden"),
    ({"family": "expand_to_fused", "hidden": 64, "topk": 33}, "topk"),
    ({"family": "expand_to_fused", "hidden": 64, "topk": 2, "dtype": "e5m2"}, "dtype"),
    ({"family": "expand_to_fused", "hidden": 64, "topk": 2, "scales": "fp32"}, "scales"),
    ({"family": "expand_to_fused", "hidden": 64, "topk": 2, "dtype": "e4m3", "group": 64}, "group"),
    ({"family": "expand_to_fused", "hidden": 64, "topk": 2, "expanded": 0}, "expanded"),
    ({"family": "expand_to_fused", "hidden": 64, "topk": 2, "tile": {"rows": 0, "stages": 2}}, "tile.rows"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "expand_to_fused", "hidden": 65536, "topk": 8, "dtype": "fp32"}, "hidden", "UB"),
    (
        {"family": "expand_to_fused", "hidden": 16384, "topk": 8, "tile": {"rows": 4, "stages": 2}},
        "tile",
        "UB",
    ),
]
