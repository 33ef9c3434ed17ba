"""Illegal mhc_split_mixes specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "mhc_split_mixes", "streams": 1}, "streams"),
    ({"family": "mhc_split_mixes", "streams": 5}, "streams"),
    ({"family": "mhc_split_mixes", "streams": "dynamic"}, "streams"),
    ({"family": "mhc_split_mixes", "tokens": 0}, "tokens"),
    ({"family": "mhc_split_mixes", "post_mult": -1.0}, "post_mult"),
    ({"family": "mhc_split_mixes", "post_mult": True}, "post_mult"),
    ({"family": "mhc_split_mixes", "pre_eps": 2.0}, "pre_eps"),
    ({"family": "mhc_split_mixes", "pre_eps": 1e-39}, "pre_eps"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
