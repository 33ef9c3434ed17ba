"""Reference of ep_prefix: sums in Python integers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.ep_prefix import EpPrefixSpec


def reference(spec: EpPrefixSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All sums in int32."""
    alignment = spec.topology.expert_alignment
    counts = inputs["recv_tokens_per_expert"].long().sum(0)
    ends, end = [], 0
    for count in counts.tolist():
        end = -(-end // alignment) * alignment + count
        ends.append(end)
    outputs = {
        "psum_num_recv_tokens_per_rank": torch.tensor(
            list(itertools.accumulate(inputs["recv_tokens_per_rank"].tolist()))
        ),
        "psum_num_recv_tokens_per_expert": torch.tensor(ends),
        "num_unaligned_recv_tokens_per_expert": counts,
    }
    if spec.stats:
        name = "cumulative_local_expert_recv_stats"
        outputs[name] = inputs[name].long() + counts
    return {name: value.int() for name, value in outputs.items()}
