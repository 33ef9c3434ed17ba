"""Sparse softmax attention in float64: one set of heads over the keys that count."""

from __future__ import annotations

import torch
from torch import Tensor


def counted_keys(indices: Tensor, length: int | None, records: int) -> Tensor:
    """The indices of one list that count: the first ``length``, of those the ones that name a record."""
    first = indices.long()[: None if length is None else max(length, 0)]
    return first[(first >= 0) & (first < records)]


def sparse_attention(
    q: Tensor, keys: Tensor, d_v: int, scale: float, sink: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [heads, d_v], largest score and log-sum-exp [heads] of queries [heads, d] over keys [n, d].

    ``sink`` [heads] is a further score that weighs nothing; it is not part of what else is returned.
    """
    heads = q.shape[0]
    if keys.shape[0] == 0:
        infinite = torch.full((heads,), torch.inf, dtype=torch.float64)
        return torch.zeros((heads, d_v), dtype=torch.float64), -infinite, infinite
    scores = (q.double() @ keys.double().T) * scale
    lse = scores.logsumexp(dim=-1)
    whole = lse if sink is None else torch.logaddexp(lse, sink.double())
    out = torch.exp(scores - whole[:, None]) @ keys[:, :d_v].double()
    return out, scores.amax(dim=-1), lse
