"""Illegal mhc_post_backward specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "mhc_post_backward"}, "hidden"),
    ({"family": "mhc_post_backward", "hidden": 96}, "hidden"),
    ({"family": "mhc_post_backward", "hidden": 65536}, "hidden"),
    ({"family": "mhc_post_backward", "hidden": 64, "streams": 1}, "streams"),
    ({"family": "mhc_post_backward", "hidden": 64, "streams": 5}, "streams"),
    ({"family": "mhc_post_backward", "hidden": 64, "tokens": -1}, "tokens"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "mhc_post_backward", "hidden": 32768}, "hidden", "UB"),
]
