"""Illegal cast specs."""

from __future__ import annotations

from typing import Any

CAST: dict[str, Any] = {"family": "cast", "hidden": 256}
RECAST = CAST | {"in_dtype": "e4m3", "in_scales": "fp32"}

CASES: list[tuple[dict[str, Any], str]] = [
    (CAST | {"hidden": 48}, "hidden"),
    (CAST | {"hidden": 32800}, "hidden"),
    (CAST | {"granularity": "per_tensor"}, "granularity"),
    (CAST | {"in_dtype": "fp16"}, "in_dtype"),
    (CAST | {"fmt": "e5m2"}, "fmt"),
    (CAST | {"tokens": 0}, "tokens"),
    (CAST | {"tile": {"rows": 65, "stages": 2}}, "tile.rows"),
    (CAST | {"in_scales": "fp32"}, "in_scales"),
    (CAST | {"in_col_major": True}, "in_col_major"),
    (CAST | {"scale_dtype": "e8m0x2"}, "round_sf"),
    (CAST | {"scales": "given", "round_sf": True}, "round_sf"),
    (CAST | {"scales": "given", "scale_dtype": "e8m0x2"}, "scale_dtype"),
    (CAST | {"scales": "given", "col_major": True}, "col_major"),
    (RECAST | {"in_scales": "none"}, "in_scales"),
    (RECAST | {"scales": "only"}, "scales"),
    (RECAST | {"granularity": "per_block"}, "in_dtype"),
    (RECAST | {"in_dtype": "e2m1", "granularity": "per_channel"}, "in_dtype"),
    (CAST | {"granularity": "per_channel", "fmt": "e2m1"}, "fmt"),
    (CAST | {"granularity": "per_channel", "scales": "given"}, "scales"),
    (CAST | {"granularity": "per_channel", "col_major": True}, "col_major"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (CAST | {"hidden": 32768, "in_dtype": "fp32", "tile": {"rows": 1, "stages": 2}}, "tile", "UB"),
    (CAST | {"hidden": 8192, "tile": {"rows": 64, "stages": 2}}, "tile", "UB"),
]
