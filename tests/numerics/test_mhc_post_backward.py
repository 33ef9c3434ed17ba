"""mhc_post_backward on the CPU twin against float64: integers bit by bit, others within tolerance."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import EQUAL, Close, check_kernel

from kaas.kernel_library.families.mhc_post_backward import MhcPostBackwardSpec

NEAR = Close(2.0**-8 + 2.0**-20, 2.0**-18)
"""One rounding to bf16 after fp32 arithmetic."""
SUM = Close(2.0**-19, 2.0**-11)
"""Up to 1024 products of normal values, in fp32; what cancels is lost absolutely."""
TOLERANCE = {
    "x_grad": NEAR,
    "residual_grad": NEAR,
    "post_mix_grad": SUM,
    "comb_mix_grad": SUM,
}


def tensors(tokens: int, hidden: int, streams: int = 4, *, whole: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)

    def values(*shape: int) -> torch.Tensor:
        drawn = torch.randn(shape, generator=generator)
        return (drawn.round() if whole else drawn).bfloat16()

    return {
        "y_grad": values(tokens, streams, hidden),
        "x": values(tokens, hidden),
        "residual": values(tokens, streams, hidden),
        "post_mix": values(tokens, streams).float(),
        "comb_mix": values(tokens, streams, streams).float(),
    }


@pytest.mark.parametrize("hidden", [64, 1024])
@pytest.mark.parametrize("tokens", [0, 1, 37])
def test_random_values_agree(hidden: int, tokens: int) -> None:
    check_kernel(MhcPostBackwardSpec(hidden=hidden), 28, tensors(tokens, hidden), TOLERANCE)


@pytest.mark.parametrize("streams", [2, 3, 4])
def test_integers_are_exact(streams: int) -> None:
    spec = MhcPostBackwardSpec(hidden=192, streams=streams, tokens=70)
    check_kernel(spec, 4, tensors(70, 192, streams, whole=True), EQUAL)


def test_long_runs_agree_on_every_core_count() -> None:
    # More groups per core than there are stages on the smallest part, and a short one at the end.
    check_on_every_part(MhcPostBackwardSpec(hidden=128), tensors(8 * 6 * 24 + 5, 128), TOLERANCE)


def test_the_widest_released_model_agrees() -> None:
    check_kernel(MhcPostBackwardSpec(hidden=7168), 4, tensors(19, 7168, whole=True), EQUAL)


def test_a_nan_stays_in_its_token() -> None:
    inputs = tensors(40, 64)
    inputs["y_grad"][17].view(-1)[5] = torch.nan
    output = check_kernel(MhcPostBackwardSpec(hidden=64), 28, inputs, TOLERANCE)["comb_mix_grad"]
    assert output.isnan().flatten(1).any(-1).nonzero().flatten().tolist() == [17]
