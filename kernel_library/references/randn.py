"""Reference of randn: Threefry in int64 arithmetic, the quantile in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.randn import RandnSpec

WORD = 2**32 - 1
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


def threefry(counters: tuple[torch.Tensor, torch.Tensor], key: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """Threefry-2x32 with 20 rounds of int64 tensors that hold 32-bit words."""
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    left, right = (counters[0] + keys[0]) & WORD, (counters[1] + keys[1]) & WORD
    for number in range(20):
        distance = ROTATIONS[number % 8]
        left = (left + right) & WORD
        right = ((right << distance | right >> (32 - distance)) & WORD) ^ left
        if number % 4 == 3:
            turn = number // 4 + 1
            left = (left + keys[turn % 3]) & WORD
            right = (right + keys[(turn + 1) % 3] + turn) & WORD
    return left, right


def reference(spec: RandnSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``out`` in float64; ``elements`` is how many there are."""
    elements, seed = inputs["elements"], inputs["seed"]
    counters = torch.arange(-(-elements // 128) * 64)
    words = threefry((counters, torch.zeros_like(counters)), (seed & WORD, seed >> 32 & WORD))
    ordered = torch.stack([word.view(-1, 64) for word in words], 1).flatten()[:elements]
    # As fp32, because the distance of a quantile near 0 from the middle depends on how m is rounded.
    steps = (ordered & 0x7FFFFFFF).float() + 0.5
    distance = -torch.special.ndtri(steps.double() * 2.0**-32)
    return {"out": torch.where(ordered > 0x7FFFFFFF, -distance, distance)}
