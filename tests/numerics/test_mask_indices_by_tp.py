"""mask_indices_by_tp on the CPU twin against integer arithmetic: every index exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.mask_indices_by_tp import MaskIndicesByTpSpec
from kaas.kernel_library.vector.row_plan import RowTile

WIDE = MaskIndicesByTpSpec(topk=8, tile=RowTile(rows=2, stages=2))
NARROW = MaskIndicesByTpSpec(topk=7, index_dtype="int32")


def inputs_of(spec: MaskIndicesByTpSpec, tokens: int, n: int, ep: int, rank: int, tp: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens + n)
    indices = torch.randint(-1, n, (tokens, spec.topk), generator=generator)
    return {
        "indices": indices.to(getattr(torch, spec.index_dtype)),
        "n": n,
        "num_ep_ranks": ep,
        "tp_rank": rank,
        "num_tp_ranks": tp,
    }


@pytest.mark.parametrize("spec", [WIDE, NARROW], ids=["int64", "int32"])
@pytest.mark.parametrize(
    ("tokens", "n", "ep", "rank", "tp"),
    [
        (333, 256, 16, 1, 4),
        (333, 288, 32, 0, 2),
        (1, 72, 8, 7, 8),
        (50, 96, 96, 2, 3),
        (50, 161, 1, 0, 1),
        (0, 256, 16, 1, 4),
    ],
)
def test_a_rank_keeps_its_experts(
    spec: MaskIndicesByTpSpec, tokens: int, n: int, ep: int, rank: int, tp: int
) -> None:
    check_kernel(spec, 4, inputs_of(spec, tokens, n, ep, rank, tp))


def test_ranks_share_all_experts_between_them() -> None:
    inputs = inputs_of(NARROW, 64, 240, 12, 0, 4)
    inputs["indices"] = torch.arange(64 * 7, dtype=torch.int32).remainder(240).view(64, 7)
    kept = 0
    for rank in range(4):
        found = check_kernel(NARROW, 4, inputs | {"tp_rank": rank})["masked_indices"]
        kept += int((found >= 0).sum())
        assert found.max() == 59
    assert kept == 64 * 7


def test_the_largest_indices_are_exact() -> None:
    inputs = inputs_of(NARROW, 9, 2**24 - 1, 3, 2, 3)
    inputs["indices"][0, :4] = torch.tensor([2**24 - 2, 2**24 // 3, 5592404, 11184810], dtype=torch.int32)
    check_kernel(NARROW, 4, inputs)
