"""Illegal lossless_block_cast specs."""

from __future__ import annotations

from typing import Any

LOSSLESS: dict[str, Any] = {"family": "lossless_block_cast", "hidden": 256}

CASES: list[tuple[dict[str, Any], str]] = [
    (LOSSLESS | {"hidden": 100}, "hidden"),
    (LOSSLESS | {"in_scales": "none"}, "in_scales"),
    (LOSSLESS | {"scale_dtype": "e4m3"}, "scale_dtype"),
    (LOSSLESS | {"col_major": None}, "col_major"),
    (LOSSLESS | {"tokens": 0}, "tokens"),
    (LOSSLESS | {"tile": {"rows": 8, "stages": 2}}, "tile.rows"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
