"""mhc_norm_mixes on the CPU twin against float64; sums of integers bit by bit."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import EXACT, Close, check_kernel

from kaas.kernel_library.families.mhc_norm_mixes import MhcNormMixesSpec

HIDDEN = 4 * 1024
NORMED = Close(2.0**-21, 2.0**-126)
# Of sums of up to five values of about 1: that many roundings.
SUMS = Close(2.0**-21, 2.0**-20)
PARTED = {"mixes": SUMS, "square_sum": Close(2.0**-21), "normed": Close(2.0**-20, 2.0**-18)}


def whole(tokens: int, columns: int = 24) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return {
        "mixes": torch.randn((tokens, columns), generator=generator),
        "square_sum": torch.rand((tokens,), generator=generator) * HIDDEN,
    }


def parts(tokens: int, splits: int, columns: int = 24) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens + splits)
    return {
        "mixes_parts": torch.randn((splits, tokens, columns), generator=generator),
        "square_sum_parts": torch.rand((splits, tokens), generator=generator) * HIDDEN,
    }


@pytest.mark.parametrize("tokens", [0, 1, 63, 65])
def test_logits_are_normalised(tokens: int) -> None:
    check_kernel(MhcNormMixesSpec(hidden=HIDDEN), 28, whole(tokens), NORMED)


@pytest.mark.parametrize("tokens", [0, 1, 63, 65])
def test_parts_are_added_up_and_normalised(tokens: int) -> None:
    check_kernel(MhcNormMixesSpec(hidden=HIDDEN, splits=5), 28, parts(tokens, 5), PARTED)


def test_long_runs_agree_on_every_core_count() -> None:
    # More blocks per core than there are stages on the smallest part, and a short one at the end.
    tokens = 64 * 8 * 6 + 5
    check_on_every_part(MhcNormMixesSpec(hidden=HIDDEN), whole(tokens), NORMED)
    check_on_every_part(MhcNormMixesSpec(hidden=HIDDEN, splits=2), parts(tokens, 2), PARTED)


@pytest.mark.parametrize(("splits", "columns"), [(2, 1), (16, 24), (3, 64)])
def test_other_numbers_of_parts_and_columns_agree(splits: int, columns: int) -> None:
    spec = MhcNormMixesSpec(hidden=HIDDEN, splits=splits, columns=columns, tokens=130)
    inputs = {name: tensor.mul(64).round() for name, tensor in parts(130, splits, columns).items()}
    how = {"mixes": EXACT, "square_sum": EXACT, "normed": NORMED}
    check_kernel(spec, 4, inputs, how)


def test_a_mean_square_of_a_power_of_four_is_exact() -> None:
    inputs = {"mixes": whole(100)["mixes"], "square_sum": torch.full((100,), 16.0 * HIDDEN)}
    outputs = check_kernel(MhcNormMixesSpec(hidden=HIDDEN, eps=0.0), 28, inputs)
    assert outputs["normed"].equal(inputs["mixes"] / 4)


def test_a_row_of_zeros_is_zero_with_eps_and_nan_without() -> None:
    inputs = whole(70)
    inputs["mixes"][66].zero_()
    inputs["square_sum"][66] = 0.0
    kept = check_kernel(MhcNormMixesSpec(hidden=HIDDEN), 28, inputs, NORMED)
    assert not kept["normed"][66].any()
    lost = check_kernel(MhcNormMixesSpec(hidden=HIDDEN, eps=0.0), 28, inputs, NORMED)
    assert lost["normed"].isnan().any(-1).nonzero().flatten().tolist() == [66]


def test_a_nan_stays_in_its_token() -> None:
    inputs = parts(130, 5)
    inputs["mixes_parts"][2, 3, 7], inputs["square_sum_parts"][4, 64] = torch.nan, torch.nan
    outputs = check_kernel(MhcNormMixesSpec(hidden=HIDDEN, splits=5), 28, inputs, PARTED)
    assert outputs["normed"].isnan().any(-1).nonzero().flatten().tolist() == [3, 64]
    assert outputs["mixes"].isnan().nonzero().tolist() == [[3, 7]]
