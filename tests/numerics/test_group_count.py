"""group_count on the CPU twin: every count exact."""

from __future__ import annotations

import pytest
import torch
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.group_count import GroupCountSpec
from kaas.kernel_library.vector.row_plan import RowTile

MANY_STAGES = GroupCountSpec(groups=256, topk=8, tile=RowTile(rows=4, stages=2))
NARROW = GroupCountSpec(groups=72, topk=6, index_dtype="int32")


def indices_of(groups: int, topk: int, tokens: int, dtype: str = "int64") -> torch.Tensor:
    generator = torch.Generator().manual_seed(groups + tokens)
    return torch.randint(-1, groups, (tokens, topk), generator=generator).to(getattr(torch, dtype))


@pytest.mark.parametrize(
    ("spec", "cores", "tokens"),
    [
        pytest.param(MANY_STAGES, 4, 333, id="many stages"),
        pytest.param(MANY_STAGES, 4, 1, id="one token"),
        pytest.param(NARROW, 4, 151, id="ragged int32"),
        pytest.param(GroupCountSpec(groups=5, topk=9, tokens=64), 36, 64, id="more cores than groups"),
        pytest.param(GroupCountSpec(groups=1000, topk=1), 32, 700, id="many groups"),
    ],
)
def test_counts_are_exact(spec: GroupCountSpec, cores: int, tokens: int) -> None:
    indices = indices_of(spec.groups, spec.topk, tokens, spec.index_dtype)
    check_kernel(spec, cores, {"group_idx": indices})


def test_groups_without_tokens_and_indices_without_group() -> None:
    indices = indices_of(256, 8, 40)
    indices[indices % 3 == 0] = -1
    indices[3], indices[4, 0], indices[4, 1] = 255, 256, 2**31 - 1
    found = check_kernel(MANY_STAGES, 4, {"group_idx": indices})
    assert found["counts"][0] == 0
    assert found["counts"][255] >= 8


def test_one_group_may_take_everything() -> None:
    found = check_kernel(NARROW, 4, {"group_idx": torch.full((500, 6), 71, dtype=torch.int32)})
    assert found["counts"].tolist() == [0] * 71 + [3000]


@pytest.mark.parametrize("spec", [MANY_STAGES, NARROW], ids=["int64", "int32"])
def test_no_tokens_count_zero(spec: GroupCountSpec) -> None:
    found = check_kernel(spec, 4, {"group_idx": indices_of(spec.groups, spec.topk, 0, spec.index_dtype)})
    assert (found["counts"] == 0).all()
