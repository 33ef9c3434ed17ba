"""Illegal mla_sparse_prefill specs."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"family": "mla_sparse_prefill", "topk": 96}, "topk"),
    ({"family": "mla_sparse_prefill", "topk": 0}, "topk"),
    ({"family": "mla_sparse_prefill", "topk": 64, "heads": 32}, "heads"),
    ({"family": "mla_sparse_prefill", "topk": 64, "d_qk": 448}, "d_qk"),
    ({"family": "mla_sparse_prefill", "topk": 64, "attn_sink": 1}, "attn_sink"),
    ({"family": "mla_sparse_prefill", "topk": 64, "topk_length": "yes"}, "topk_length"),
    ({"family": "mla_sparse_prefill", "topk": 64, "tokens": 0}, "tokens"),
    ({"family": "mla_sparse_prefill", "topk": 64, "tile": {"keys": 96}}, "tile.keys"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "mla_sparse_prefill", "topk": 128, "d_qk": 576, "tile": {"keys": 128}}, "tile", "L1"),
]
