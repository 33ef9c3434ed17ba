"""Illegal ep_expand specs."""

from __future__ import annotations

from typing import Any

TOPOLOGY: dict[str, Any] = {"ranks": 8, "experts": 64, "topk": 4, "max_tokens_per_rank": 128}
SPEC: dict[str, Any] = {"family": "ep_expand", "topology": TOPOLOGY, "hidden": 64}

CASES: list[tuple[dict[str, Any], str]] = [
    (SPEC | {"topology": TOPOLOGY | {"expert_alignment": 3}}, "topology.expert_alignment"),
    (SPEC | {"hidden": 65568}, "hidden"),
    (SPEC | {"dtype": "fp32"}, "dtype"),
    (SPEC | {"scale_packs": 4}, "scale_packs"),
    (SPEC | {"dtype": "e4m3", "scale_packs": -1}, "scale_packs"),
    (SPEC | {"weights": None}, "weights"),
    (SPEC | {"cached": 1}, "cached"),
    (SPEC | {"zero_padding": "yes"}, "zero_padding"),
    (SPEC | {"received": 1025}, "received"),
    (SPEC | {"expanded": 0}, "expanded"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (
        SPEC | {"hidden": 65536, "topology": TOPOLOGY | {"experts": 4096}, "tile": {"rows": 2, "stages": 1}},
        "tile",
        "UB",
    ),
    (SPEC | {"hidden": 7168, "tile": {"rows": 8, "stages": 3}}, "tile", "UB"),
]
