"""Positions of a mixture of experts: where each expert's copy of a token lies."""

from __future__ import annotations

import torch


def fused_positions(
    tokens: int, topk: int, *, experts: int = 12, alignment: int = 8, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """``token_topk_to_pos`` [tokens, topk] and ``pos_to_expert`` [places], both int32.

    A fifth of the choices is -1 (an expert elsewhere), as are all choices of token 1. Each expert's places
    are padded to ``alignment``; the last expert has no token.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand((tokens, experts - 1), generator=generator).argsort(-1)[:, :topk]
    chosen[torch.rand((tokens, topk), generator=generator) < 0.2] = -1
    chosen[1:2] = -1
    positions = torch.full((tokens, topk), -1, dtype=torch.int32)
    places: list[int] = []
    for expert in range(experts):
        members = (chosen == expert).nonzero()
        for token, k in members.tolist():
            positions[token, k] = len(places)
            places.append(expert)
        places += [-1] * (-len(places) % alignment)
    places += [-1] * (alignment if not places else 0)
    return positions, torch.tensor(places, dtype=torch.int32)
