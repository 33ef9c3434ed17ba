"""unique_group_indices on the CPU twin against a comparison of all pairs: every index exact."""

from __future__ import annotations

import pytest
import torch
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.unique_group_indices import UniqueGroupIndicesSpec
from kaas.kernel_library.vector.row_plan import RowTile

WIDE = UniqueGroupIndicesSpec(topk=8, tile=RowTile(rows=2, stages=2))
NARROW = UniqueGroupIndicesSpec(topk=7, index_dtype="int32")


def indices_of(spec: UniqueGroupIndicesSpec, tokens: int, groups: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tokens)
    indices = torch.randint(-1, groups, (tokens, spec.topk), generator=generator)
    return indices.to(getattr(torch, spec.index_dtype))


@pytest.mark.parametrize(
    ("spec", "cores", "tokens"),
    [
        pytest.param(WIDE, 4, 8 * 128 * 3 + 65, id="many stages"),
        pytest.param(WIDE, 4, 1, id="one token"),
        pytest.param(WIDE, 4, 0, id="no token"),
        pytest.param(NARROW, 28, 1003, id="ragged int32"),
        pytest.param(UniqueGroupIndicesSpec(topk=1, tokens=70), 36, 70, id="a single index"),
        pytest.param(UniqueGroupIndicesSpec(topk=32), 32, 130, id="many indices"),
    ],
)
def test_the_first_mention_of_a_group_stays(spec: UniqueGroupIndicesSpec, cores: int, tokens: int) -> None:
    check_kernel(spec, cores, {"group_indices": indices_of(spec, tokens, 8)})


def test_a_token_in_one_group_keeps_one_index() -> None:
    found = check_kernel(NARROW, 4, {"group_indices": torch.full((65, 7), 2**31 - 1, dtype=torch.int32)})
    assert found["group_indices"].tolist() == [[2**31 - 1] + [-1] * 6] * 65


def test_negative_indices_keep_their_bits() -> None:
    indices = torch.tensor([[-2, -2, 0, 5, 0, -1, 5, -(2**31)]]).expand(9, 8)
    found = check_kernel(WIDE, 4, {"group_indices": indices})
    assert found["group_indices"][8].tolist() == [-2, -2, 0, 5, -1, -1, -1, -(2**31)]
