"""engram_fused_weight on the CPU twin: bit-exact in every schedule."""

from __future__ import annotations

import pytest
import torch
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.engram_fused_weight import EngramFusedWeightSpec


@pytest.mark.parametrize(
    ("hidden", "streams", "cores"), [(64, 1, 4), (7168, 4, 4), (7168, 4, 32), (4160, 8, 28), (32768, 8, 4)]
)
def test_weights_are_multiplied(hidden: int, streams: int, cores: int) -> None:
    generator = torch.Generator().manual_seed(hidden)
    left, right = torch.randn((2, streams, hidden), generator=generator).bfloat16()
    left[0, 0], right[0, 1] = torch.inf, torch.nan
    spec = EngramFusedWeightSpec(hidden=hidden, streams=streams)
    check_kernel(spec, cores, {"weight_hidden": left, "weight_embed": right})
