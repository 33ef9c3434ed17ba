"""mhc_norm_weight on the CPU twin: one rounded product per value, bit by bit."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import EXACT, check_kernel

from kaas.kernel_library.families.mhc_norm_weight import MhcNormWeightSpec


def tensors(hidden: int, columns: int = 24) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(hidden)
    return {
        "weight": torch.randn((columns, hidden), generator=generator),
        "norm_weight": torch.randn((hidden,), generator=generator),
    }


@pytest.mark.parametrize(("hidden", "columns"), [(64, 24), (64 * 13, 8), (4 * 1280, 1), (1024, 64)])
def test_products_are_exact(hidden: int, columns: int) -> None:
    check_kernel(MhcNormWeightSpec(hidden=hidden, columns=columns), 28, tensors(hidden, columns))


def test_long_runs_agree_on_every_core_count() -> None:
    # The cores of the smallest part take more pieces than there are stages.
    check_on_every_part(MhcNormWeightSpec(hidden=4 * 7168), tensors(4 * 7168), EXACT)


def test_a_nan_or_an_infinity_stays_in_its_column() -> None:
    inputs = tensors(1024)
    inputs["norm_weight"][70], inputs["weight"][3, 900] = torch.inf, torch.nan
    outputs = check_kernel(MhcNormWeightSpec(hidden=1024), 28, inputs)
    assert outputs["merged"].isinf().nonzero()[:, 1].unique().tolist() == [70]
    assert outputs["merged"].isnan().nonzero().tolist() == [[3, 900]]
