"""topk_groups on the CPU twin against sorts: every index exact."""

from __future__ import annotations

import pytest
import torch
from support.kernel_checks import check_kernel, reference_of
from support.twin_kernels import aligned, kernel

from kaas.kernel_library.families.topk_groups import TopkGroupsSpec
from kaas.kernel_library.vector.row_plan import RowTile

PLAIN = TopkGroupsSpec(groups=8, group_size=32, topk_groups=4, tile=RowTile(rows=3, stages=2))
SINGLE = TopkGroupsSpec(groups=5, group_size=7, topk_groups=2, summed=1, index_dtype="int32")


def scores_of(spec: TopkGroupsSpec, tokens: int) -> torch.Tensor:
    """Scores of few values, so that many sums are equal."""
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(-6, 7, (tokens, spec.groups, spec.group_size), generator=generator) / 8


@pytest.mark.parametrize(
    ("spec", "cores", "tokens"),
    [
        pytest.param(PLAIN, 4, 205, id="many stages"),
        pytest.param(PLAIN, 4, 1, id="one token"),
        pytest.param(PLAIN, 4, 0, id="no token"),
        pytest.param(SINGLE, 28, 99, id="ragged int32"),
        pytest.param(TopkGroupsSpec(groups=64, group_size=2, topk_groups=32), 36, 70, id="many groups"),
        pytest.param(TopkGroupsSpec(groups=1, group_size=256, topk_groups=1, tokens=9), 4, 9, id="one group"),
        pytest.param(TopkGroupsSpec(groups=16, group_size=1, topk_groups=16, summed=1), 32, 40, id="all"),
    ],
)
def test_ties_go_to_the_lower_group(spec: TopkGroupsSpec, cores: int, tokens: int) -> None:
    check_kernel(spec, cores, {"scores": scores_of(spec, tokens)})


def test_sums_are_rounded_as_fp32() -> None:
    scores = torch.randn((50, 8, 32), generator=torch.Generator().manual_seed(5)) * 1e-4 + 1
    check_kernel(PLAIN, 4, {"scores": scores})


def test_infinite_scores_have_their_place() -> None:
    scores = scores_of(SINGLE, 12)
    scores[:, 3], scores[::2, 4, 6] = -torch.inf, torch.inf
    found = check_kernel(SINGLE, 4, {"scores": scores})["topk_group_idx"]
    assert (found[::2, 0] == 4).all()
    assert (found != 3).all()


def test_a_nan_spoils_no_other_token() -> None:
    scores = scores_of(PLAIN, 40)
    expected = reference_of(PLAIN, {"scores": scores})["topk_group_idx"]
    scores[17, 2, 5] = torch.nan
    found = aligned(torch.full((40, 4), -9))
    kernel(PLAIN, 4).launch(aligned(scores), found)
    others = torch.arange(40) != 17
    assert found[others].equal(expected[others])
