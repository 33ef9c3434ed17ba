"""mhc_split_mixes_backward on the CPU twin against float64; integers through the residual part bit by bit."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import Close, check_kernel

from kaas.kernel_library.families.mhc_split_mixes_backward import MhcSplitMixesBackwardSpec

NEAR = {
    "mixes_grad": Close(2.0**-18, 2.0**-20),
    "scale_grad": Close(2.0**-18, 2.0**-14),
    "base_grad": Close(2.0**-18, 2.0**-16),
}


def tensors(tokens: int, streams: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    width = streams * (streams + 2)
    return {
        "pre_mix_grad": values(tokens, streams),
        "post_mix_grad": values(tokens, streams),
        "comb_mix_grad": values(tokens, streams, streams),
        "mixes": values(tokens, width),
        "scale": values(3),
        "base": values(width),
    }


@pytest.mark.parametrize("tokens", [0, 1, 63, 65])
def test_gradients_agree(tokens: int) -> None:
    check_kernel(MhcSplitMixesBackwardSpec(), 28, tensors(tokens), NEAR)


def test_long_runs_agree_on_every_core_count() -> None:
    check_on_every_part(MhcSplitMixesBackwardSpec(post_mult=1.5), tensors(64 * 8 * 6 + 5), NEAR)


@pytest.mark.parametrize("streams", [2, 3])
def test_other_numbers_of_streams_agree(streams: int) -> None:
    check_kernel(MhcSplitMixesBackwardSpec(streams=streams, tokens=130), 4, tensors(130, streams), NEAR)


def test_integers_of_the_residual_part_are_exact() -> None:
    inputs = {name: tensor.mul(4).round() for name, tensor in tensors(200).items()}
    inputs["pre_mix_grad"].zero_()
    inputs["post_mix_grad"].zero_()
    check_kernel(MhcSplitMixesBackwardSpec(), 28, inputs)


def test_a_nan_reaches_its_token_and_the_sums_of_its_block_only() -> None:
    inputs = tensors(200)
    inputs["comb_mix_grad"][70, 1, 2] = torch.nan
    outputs = check_kernel(MhcSplitMixesBackwardSpec(), 28, inputs, NEAR)
    assert outputs["mixes_grad"].isnan().nonzero().tolist() == [[70, 14]]
    assert outputs["base_grad"].isnan().nonzero().tolist() == [[1, 14]]
    assert outputs["scale_grad"].isnan().nonzero().tolist() == [[1, 2]]
