"""Softmax attention in float64: what every attention kernel computes for one set of queries and keys."""

from __future__ import annotations

import torch


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of queries [rows, d_qk] over keys [n, d_qk] with values [n, d_v].

    ``seen`` [rows, n] says which keys a row sees. A row that sees none has output 0 and log-sum-exp +inf.
    """
    scores = (q.double() @ k.double().T) * scale
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(dim=-1) if k.shape[0] else torch.full((q.shape[0],), -torch.inf).double()
    empty = ~seen.any(dim=-1)
    weights = torch.exp(scores - lse[:, None]).masked_fill(~seen, 0.0)
    out = (weights @ v.double()).masked_fill(empty[:, None], 0.0)
    return out, lse.masked_fill(empty, torch.inf)
