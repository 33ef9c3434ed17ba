"""Sums over blocks of 64 tokens, as kernels leave gradients of what all tokens share."""

from __future__ import annotations

import torch

BLOCK = 64


def block_sums(per_token: torch.Tensor) -> torch.Tensor:
    """[tokens, ...] summed over each 64 tokens: [ceil(tokens/64), ...]."""
    missing = -per_token.shape[0] % BLOCK
    filled = torch.cat([per_token, per_token.new_zeros(missing, *per_token.shape[1:])])
    return filled.unflatten(0, (-1, BLOCK)).sum(1)
