"""Reference of mask_indices_by_tp in integer arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.mask_indices_by_tp import MaskIndicesByTpSpec


def reference(spec: MaskIndicesByTpSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``masked_indices`` in the spec's index dtype."""
    indices = inputs["indices"].long()
    rank_size, ranks = inputs["n"] // inputs["num_ep_ranks"], inputs["num_tp_ranks"]
    owner = indices // rank_size
    kept = (indices >= 0) & (owner % ranks == inputs["tp_rank"])
    local = owner // ranks * rank_size + indices % rank_size
    return {"masked_indices": torch.where(kept, local, -1).to(inputs["indices"].dtype)}
