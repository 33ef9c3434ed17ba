"""normalize_weight on the CPU twin against fp32 operations in the written order: every bit."""

from __future__ import annotations

import pytest
import torch
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.normalize_weight import NormalizeWeightSpec
from kaas.kernel_library.vector.row_plan import RowTile

SMALL_STAGES = NormalizeWeightSpec(topk=8, tile=RowTile(rows=2, stages=2))


def weights_of(topk: int, tokens: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tokens)
    size = torch.rand((tokens, topk), generator=generator)
    return size * 10.0 ** torch.randint(-6, 6, (tokens, topk), generator=generator)


@pytest.mark.parametrize(
    ("spec", "cores", "tokens"),
    [
        pytest.param(SMALL_STAGES, 4, 8 * 128 * 5 + 65, id="many stages"),
        pytest.param(SMALL_STAGES, 4, 1, id="one token"),
        pytest.param(NormalizeWeightSpec(topk=6), 32, 3001, id="six"),
        pytest.param(NormalizeWeightSpec(topk=1, tokens=130), 36, 130, id="a single expert"),
        pytest.param(NormalizeWeightSpec(topk=33), 28, 200, id="many experts"),
    ],
)
def test_weights_are_divided_by_their_ordered_sum(spec: NormalizeWeightSpec, cores: int, tokens: int) -> None:
    check_kernel(spec, cores, {"topk_weights": weights_of(spec.topk, tokens)})


def test_a_token_without_weights_divides_by_the_least_sum() -> None:
    found = check_kernel(SMALL_STAGES, 4, {"topk_weights": torch.zeros((70, 8))})
    assert (found["denominator"] == 1e-20).all()
    assert (found["normalized_weights"] == 0).all()


def test_what_is_not_finite_stays_with_its_token() -> None:
    weights = weights_of(8, 70)
    weights[3, 2], weights[5, 0], weights[6] = torch.nan, torch.inf, 1e38
    check_kernel(SMALL_STAGES, 4, {"topk_weights": weights})


def test_no_tokens_are_no_work() -> None:
    check_kernel(SMALL_STAGES, 4, {"topk_weights": torch.empty((0, 8))})
