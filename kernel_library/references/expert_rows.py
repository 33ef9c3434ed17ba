"""Which rows of an expanded layout hold tokens, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def is_token(rows: int, expert_ends: Tensor, alignment: int) -> Tensor:
    """bool [rows]: an expert's rows begin where the one before ended, rounded up to ``alignment``."""
    found = torch.zeros(rows, dtype=torch.bool)
    begin = 0
    for end in expert_ends.tolist():
        found[begin:end] = True
        begin = -(-end // alignment) * alignment
    return found
