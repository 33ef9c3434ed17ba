"""Reference of ep_combine: fp32 sums in order of k, rounded where the kernel rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.ep_combine import EpCombineSpec


def reference(spec: EpCombineSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``out`` in bf16."""
    one, choices = spec.topology, inputs["topk_idx"].long()
    known = (choices >= 0) & (choices < one.experts)
    ranks = torch.where(known, choices // one.experts_per_rank, -1)
    y = inputs["y"].float()
    total = torch.zeros((len(choices), spec.hidden))
    if spec.biases:
        total = inputs["bias0"].float()
    if spec.biases == 2:
        total = total + inputs["bias1"].float()
    for k in range(one.topk):
        counts, rows = known[:, k], y[:, k]
        if spec.per_rank != "none":
            counts = counts & ~(ranks[:, k + 1 :] == ranks[:, k : k + 1]).any(1)
        if spec.per_rank == "here":
            rows = torch.zeros_like(total)
            for other in range(k + 1):
                shared = known[:, other] & (ranks[:, other] == ranks[:, k])
                rows[shared] = rows[shared] + y[shared, other]
            rows = rows.to(torch.bfloat16).float()
        total = torch.where(counts[:, None], total + rows, total)
    return {"out": total.to(torch.bfloat16)}
