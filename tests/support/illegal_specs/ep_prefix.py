"""Illegal ep_prefix specs, and what is illegal in the topology that all expert-parallel specs share."""

from __future__ import annotations

from typing import Any

TOPOLOGY: dict[str, Any] = {"ranks": 8, "experts": 64, "topk": 4, "max_tokens_per_rank": 128}


def _with(**changed: Any) -> dict[str, Any]:
    return {"family": "ep_prefix", "topology": TOPOLOGY | changed}


CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "ep_prefix", "topology": None}, "topology"),
    ({"family": "ep_prefix", "topology": TOPOLOGY, "stats": 1}, "stats"),
    (_with(ranks=0), "topology.ranks"),
    (_with(ranks=3, experts=63), "topology.ranks"),
    (_with(ranks=514, experts=514), "topology.ranks"),
    (_with(experts=60), "topology.experts"),
    (_with(ranks=2, experts=1026), "topology.experts"),
    (_with(experts=8192), "topology.experts"),
    (_with(topk=33), "topology.topk"),
    (_with(experts=8, topk=9), "topology.topk"),
    (_with(max_tokens_per_rank=0), "topology.max_tokens_per_rank"),
    (_with(max_tokens_per_rank=2**21), "topology.max_tokens_per_rank"),
    (_with(expert_alignment=96), "topology.expert_alignment"),
    (_with(expert_alignment=0), "topology.expert_alignment"),
    (_with(nodes=3), "topology.nodes"),
    (_with(nodes=16), "topology.nodes"),
    (_with(group_cards=129), "topology.group_cards"),
    (_with(group_cards=6), "topology.group_cards"),
    (_with(group_cards=4, nodes=1), "topology.group_cards"),
    (_with(ranks=256, experts=256, nodes=32, group_cards=100), "topology.group_cards"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
