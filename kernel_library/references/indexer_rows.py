"""Scores of queries for keys in float64, as the references of the indexer's kernels read them."""

from __future__ import annotations

from torch import Tensor

from kaas.kernel_library.references.number_formats import BLOCK, dequantise, unpack_pairs


def rows_of(stored: Tensor, pairs: Tensor, dtype: str) -> Tensor:
    """float64 [rows, head_dim] of stored values [..., head_dim] and their scale pairs [head_dim/64, rows]."""
    flat = stored.contiguous().flatten(0, -2)
    width = flat.shape[1] * (2 if dtype == "e2m1" else 1)
    return dequantise(flat, unpack_pairs(pairs, width // BLOCK), dtype)


def scores(query: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """float64 [keys] of one query's heads [heads, head_dim], keys [keys, head_dim] and weights [heads]."""
    return weights.double() @ (query @ keys.T).relu()
