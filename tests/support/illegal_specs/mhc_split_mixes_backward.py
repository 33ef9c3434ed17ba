"""Illegal mhc_split_mixes_backward specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "mhc_split_mixes_backward", "streams": 1}, "streams"),
    ({"family": "mhc_split_mixes_backward", "streams": 5}, "streams"),
    ({"family": "mhc_split_mixes_backward", "streams": "dynamic"}, "streams"),
    ({"family": "mhc_split_mixes_backward", "tokens": 0}, "tokens"),
    ({"family": "mhc_split_mixes_backward", "post_mult": 1025.0}, "post_mult"),
    ({"family": "mhc_split_mixes_backward", "pre_eps": 1e-6}, "pre_eps"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
