"""Illegal mhc_pre_fuse specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "mhc_pre_fuse"}, "hidden"),
    ({"family": "mhc_pre_fuse", "hidden": 96}, "hidden"),
    ({"family": "mhc_pre_fuse", "hidden": 4096, "streams": 5}, "streams"),
    ({"family": "mhc_pre_fuse", "hidden": 4096, "repeat": 0}, "repeat"),
    ({"family": "mhc_pre_fuse", "hidden": 4096, "norm_eps": -1e-6}, "norm_eps"),
    ({"family": "mhc_pre_fuse", "hidden": 4096, "pre_eps": 1.5}, "pre_eps"),
    ({"family": "mhc_pre_fuse", "hidden": 4096, "sinkhorn_eps": True}, "sinkhorn_eps"),
    ({"family": "mhc_pre_fuse", "hidden": 4096, "post_mult": 1025.0}, "post_mult"),
    ({"family": "mhc_pre_fuse", "hidden": 4096, "tokens": 0}, "tokens"),
    ({"family": "mhc_pre_fuse", "hidden": 4096, "norm_eps": 5e-324}, "norm_eps"),
    ({"family": "mhc_pre_fuse", "hidden": 4096, "sinkhorn_eps": 0.0}, "sinkhorn_eps"),
    ({"family": "mhc_pre_fuse", "hidden": 4096, "pre_eps": 1e-40}, "pre_eps"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "mhc_pre_fuse", "hidden": 32768}, "hidden", "UB"),
]
