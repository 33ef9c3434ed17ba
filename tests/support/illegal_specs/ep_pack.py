"""Illegal ep_pack specs."""

from __future__ import annotations

from typing import Any

TOPOLOGY: dict[str, Any] = {"ranks": 8, "experts": 64, "topk": 4, "max_tokens_per_rank": 128}
SPEC: dict[str, Any] = {"family": "ep_pack", "topology": TOPOLOGY, "hidden": 64}

CASES: list[tuple[dict[str, Any], str]] = [
    (SPEC | {"topology": TOPOLOGY | {"experts": 63}}, "topology.experts"),
    (SPEC | {"hidden": 48}, "hidden"),
    (SPEC | {"dtype": "fp16"}, "dtype"),
    (SPEC | {"scale_packs": 1}, "scale_packs"),
    (SPEC | {"dtype": "e4m3", "scale_packs": 5}, "scale_packs"),
    (SPEC | {"weights": 1}, "weights"),
    (SPEC | {"cached": "no"}, "cached"),
    (SPEC | {"index_dtype": "uint8"}, "index_dtype"),
    (SPEC | {"tokens": 129}, "tokens"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (SPEC | {"hidden": 16384, "tile": {"rows": 4, "stages": 2}}, "tile", "UB"),
]
