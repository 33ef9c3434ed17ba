"""Reference of engram_hash: int64 arithmetic of torch, which wraps; its remainder is floored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.engram_hash import EngramHashSpec


def reference(spec: EngramHashSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``out`` as int32."""
    ids, multipliers = inputs["ngram_token_ids"].long(), inputs["multipliers"]
    out = torch.empty((spec.layers, len(ids), spec.ngram - 1, spec.tables), dtype=torch.int64)
    for layer in range(spec.layers):
        mixed = ids[:, 0] * multipliers[layer, 0]
        for place in range(1, spec.ngram):
            mixed = mixed ^ (ids[:, place] * multipliers[layer, place])
            out[layer, :, place - 1] = mixed[:, None] % inputs["vocab_sizes"][layer, place - 1].long()
    out = out.flatten(2) + inputs["offsets"][:, None, :]
    if spec.image_mask:
        out[:, inputs["image_token_mask"]] = -1
    return {"out": out.int()}
