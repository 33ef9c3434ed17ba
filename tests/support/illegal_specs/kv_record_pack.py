"""Illegal kv_record_pack specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "kv_record_pack", "fmt": "bf16"}, "fmt"),
    ({"family": "kv_record_pack", "tokens": 0}, "tokens"),
    ({"family": "kv_record_pack", "tile": {"rows": 65, "stages": 2}}, "tile.rows"),
    ({"family": "kv_record_pack", "tile": {"rows": 2, "stages": 0}}, "tile.stages"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "kv_record_pack", "tile": {"rows": 64, "stages": 4}}, "tile", "UB"),
]
