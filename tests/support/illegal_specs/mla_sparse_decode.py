"""Illegal mla_sparse_decode specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "mla_sparse_decode", "topk": 32}, "topk"),
    ({"family": "mla_sparse_decode", "topk": 64, "heads": 96}, "heads"),
    ({"family": "mla_sparse_decode", "topk": 64, "s_q": 17}, "s_q"),
    ({"family": "mla_sparse_decode", "topk": 64, "extra": "bf16"}, "extra"),
    ({"family": "mla_sparse_decode", "topk": 64, "extra": "fp4"}, "extra_topk"),
    ({"family": "mla_sparse_decode", "topk": 64, "extra_topk": 64}, "extra_topk"),
    ({"family": "mla_sparse_decode", "topk": 64, "extra": "fp8", "extra_topk": 100}, "extra_topk"),
    ({"family": "mla_sparse_decode", "topk": 64, "extra_topk_length": True}, "extra_topk_length"),
    ({"family": "mla_sparse_decode", "topk": 64, "attn_sink": None}, "attn_sink"),
    ({"family": "mla_sparse_decode", "topk": 64, "requests": -1}, "requests"),
    ({"family": "mla_sparse_decode", "topk": 64, "tile": {"keys": 32}}, "tile.keys"),
    ({"family": "mla_sparse_decode", "heads": 128, "topk": 64, "requests": 2**24}, "requests"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = []
