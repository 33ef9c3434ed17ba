"""engram_sinkhorn_step_reduce on the CPU twin against fp32 additions in order: every bit."""

from __future__ import annotations

import pytest
import torch
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.engram_sinkhorn_step_reduce import EngramSinkhornStepReduceSpec

CASES = [
    (EngramSinkhornStepReduceSpec(head_dim=64, partials=1), 4),
    (EngramSinkhornStepReduceSpec(head_dim=4160, partials=33), 4),
    (EngramSinkhornStepReduceSpec(head_dim=1024), 28),
    (EngramSinkhornStepReduceSpec(head_dim=32768, partials=3), 4),
]


@pytest.mark.parametrize(("spec", "cores"), CASES, ids=[f"{one.partials}x{one.head_dim}" for one, _ in CASES])
def test_partial_sums_are_added_in_order(spec: EngramSinkhornStepReduceSpec, cores: int) -> None:
    generator = torch.Generator().manual_seed(spec.head_dim)
    check_kernel(
        spec, cores, {"col_sumsq_partial": torch.rand((spec.partials, spec.head_dim), generator=generator)}
    )


def test_infinities_and_nan_stay_in_their_column() -> None:
    spec = CASES[1][0]
    partial = torch.rand((33, 4160), generator=torch.Generator().manual_seed(1))
    partial[32, 4159], partial[0, 64], partial[7, 64] = torch.nan, torch.inf, torch.inf
    found = check_kernel(spec, 4, {"col_sumsq_partial": partial})["col_sumsq"]
    assert (~found.isfinite()).nonzero().flatten().tolist() == [64, 4159]
