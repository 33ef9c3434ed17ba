"""Reference of fused_mapping: a stable sort of all choices by expert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.fused_mapping import FusedMappingSpec


def reference(spec: FusedMappingSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All maps in int32; ``expanded`` is the number of places that the maps have."""
    choices = inputs["topk_idx"].long()
    flat, expanded = choices.flatten(), inputs["expanded"]
    known = (flat >= 0) & (flat < spec.experts)
    counts = torch.bincount(flat[known], minlength=spec.experts)
    sizes = -(-counts // spec.alignment) * spec.alignment
    ends = sizes.cumsum(0)
    starts = ends - sizes

    order = torch.argsort(flat.where(known, spec.experts), stable=True)[: int(known.sum())]
    experts = flat[order]
    first_of_expert = counts.cumsum(0) - counts
    places = starts[experts] + torch.arange(len(order)) - first_of_expert[experts]
    to_place = torch.full(flat.shape, -1)
    to_place[order] = places
    maps = {name: torch.full((expanded,), -1) for name in ("expert", "token", "token_topk")}
    held = places < expanded
    maps["expert"][places[held]], maps["token_topk"][places[held]] = experts[held], order[held]
    maps["token"][places[held]] = order[held] // spec.topk
    outputs = {f"pos_to_{name}": value for name, value in maps.items()}
    outputs["token_topk_to_pos"] = to_place.view(choices.shape)
    outputs |= {"expert_start": starts, "expert_end": ends, "num_tokens_per_expert": sizes}
    return {name: value.int() for name, value in outputs.items()}
