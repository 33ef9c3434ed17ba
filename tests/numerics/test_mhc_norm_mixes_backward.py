"""mhc_norm_mixes_backward on the CPU twin against float64."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import EXACT, Close, check_kernel

from kaas.kernel_library.families.mhc_norm_mixes_backward import MhcNormMixesBackwardSpec

HIDDEN = 4 * 1024
# The sums are of 24 values of about 1, times a slope of at most 1 / 2 / HIDDEN for a mean square above 1.
NEAR = {"mixes_grad": Close(2.0**-21), "square_sum_grad": Close(2.0**-19, 2.0**-16 / HIDDEN)}


def tensors(tokens: int, columns: int = 24) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return {
        "normed_grad": torch.randn((tokens, columns), generator=generator),
        "mixes": torch.randn((tokens, columns), generator=generator),
        "square_sum": (torch.rand((tokens,), generator=generator) + 1.0) * HIDDEN,
    }


@pytest.mark.parametrize("tokens", [0, 1, 63, 65])
def test_gradients_agree(tokens: int) -> None:
    check_kernel(MhcNormMixesBackwardSpec(hidden=HIDDEN), 28, tensors(tokens), NEAR)


def test_long_runs_agree_on_every_core_count() -> None:
    spec = MhcNormMixesBackwardSpec(hidden=HIDDEN, eps=0.5)
    check_on_every_part(spec, tensors(64 * 8 * 6 + 5), NEAR)


@pytest.mark.parametrize("columns", [1, 8, 64])
def test_other_numbers_of_columns_agree(columns: int) -> None:
    spec = MhcNormMixesBackwardSpec(hidden=HIDDEN, columns=columns, tokens=130)
    check_kernel(spec, 4, tensors(130, columns), NEAR)


def test_integers_at_a_mean_square_of_a_power_of_four_are_exact() -> None:
    inputs = {name: tensor.mul(8).round() for name, tensor in tensors(100).items()}
    inputs["square_sum"] = torch.full((100,), 4.0 * HIDDEN)
    check_kernel(MhcNormMixesBackwardSpec(hidden=HIDDEN, eps=0.0), 28, inputs, EXACT)


def test_a_nan_stays_in_its_token() -> None:
    inputs = tensors(130)
    inputs["mixes"][3, 7], inputs["square_sum"][64] = torch.nan, torch.nan
    outputs = check_kernel(MhcNormMixesBackwardSpec(hidden=HIDDEN), 28, inputs, NEAR)
    assert outputs["square_sum_grad"].isnan().nonzero().flatten().tolist() == [3, 64]
    assert outputs["mixes_grad"].isnan().any(-1).nonzero().flatten().tolist() == [64]
