"""Reference of ep_pack: records put together byte by byte, then copied to their slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.ep_records import empty_records, put

if TYPE_CHECKING:
    from kaas.kernel_library.families.ep_pack import EpPackSpec


def reference(spec: EpPackSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``send``; slots that no token takes hold bytes 0xFF."""
    one, layout = spec.topology, spec.record
    choices, slots = inputs["topk_idx"].long(), inputs["dst_slot"].long()
    known = (choices >= 0) & (choices < one.experts)
    records = empty_records(len(choices), layout)
    put(records, 0, inputs["x"])
    if spec.scale_packs:
        put(records, layout.scales, inputs["x_scales"])
    if spec.weights:
        put(records, layout.weights, inputs["topk_weights"])
    if not spec.cached:
        source = inputs["rank"] * one.max_tokens_per_rank + torch.arange(len(choices))
        put(records, layout.experts, torch.where(known, choices, -1).int())
        put(records, layout.source, source.int()[:, None])
    send = torch.full((one.ranks, one.max_tokens_per_rank, records.shape[1]), 0xFF, dtype=torch.uint8)
    for k in range(one.topk):
        taken = known[:, k] & (slots[:, k] >= 0) & (slots[:, k] < one.max_tokens_per_rank)
        send[choices[taken, k] // one.experts_per_rank, slots[taken, k]] = records[taken]
    return {"send": send.view(torch.int32)}
