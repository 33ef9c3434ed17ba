"""Illegal mhc_head_mix_backward specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "mhc_head_mix_backward", "streams": 1}, "streams"),
    ({"family": "mhc_head_mix_backward", "streams": 5}, "streams"),
    ({"family": "mhc_head_mix_backward", "streams": "dynamic"}, "streams"),
    ({"family": "mhc_head_mix_backward", "tokens": 0}, "tokens"),
    ({"family": "mhc_head_mix_backward", "eps": 1e-6}, "eps"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
