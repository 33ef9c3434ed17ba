"""Illegal kv_record_unpack specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "kv_record_unpack", "fmt": "bf16"}, "fmt"),
    ({"family": "kv_record_unpack", "tokens": 0}, "tokens"),
    ({"family": "kv_record_unpack", "tile": {"rows": 65, "stages": 2}}, "tile.rows"),
    ({"family": "kv_record_unpack", "tile": {"rows": 2, "stages": 0}}, "tile.stages"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "kv_record_unpack", "tile": {"rows": 64, "stages": 4}}, "tile", "UB"),
]
