"""mhc_head_mix_backward on the CPU twin against float64."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import Close, check_kernel

from kaas.kernel_library.families.mhc_head_mix_backward import MhcHeadMixBackwardSpec

NEAR = {
    "logits_grad": Close(2.0**-18, 2.0**-22),
    "scale_grad": Close(2.0**-18, 2.0**-16),
    "base_grad": Close(2.0**-18, 2.0**-18),
}


def tensors(tokens: int, streams: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return {
        "mix_grad": torch.randn((tokens, streams), generator=generator),
        "logits": torch.randn((tokens, streams), generator=generator),
        "scale": torch.randn(1, generator=generator),
        "base": torch.randn(streams, generator=generator),
    }


@pytest.mark.parametrize("tokens", [0, 1, 63, 65])
def test_gradients_agree(tokens: int) -> None:
    check_kernel(MhcHeadMixBackwardSpec(), 28, tensors(tokens), NEAR)


def test_long_runs_agree_on_every_core_count() -> None:
    check_on_every_part(MhcHeadMixBackwardSpec(), tensors(64 * 8 * 13 + 5), NEAR)


@pytest.mark.parametrize("streams", [2, 3])
def test_other_numbers_of_streams_agree(streams: int) -> None:
    check_kernel(MhcHeadMixBackwardSpec(streams=streams, tokens=130), 4, tensors(130, streams), NEAR)


def test_integers_at_logits_of_zero_are_exact() -> None:
    inputs = {name: tensor.mul(4).round() for name, tensor in tensors(200).items()}
    inputs["logits"].zero_()
    inputs["base"].zero_()
    check_kernel(MhcHeadMixBackwardSpec(), 28, inputs)


def test_a_nan_reaches_its_token_and_the_sums_of_its_block_only() -> None:
    inputs = tensors(200)
    inputs["mix_grad"][130, 2] = torch.nan
    outputs = check_kernel(MhcHeadMixBackwardSpec(), 28, inputs, NEAR)
    assert outputs["logits_grad"].isnan().nonzero().tolist() == [[130, 2]]
    assert outputs["base_grad"].isnan().nonzero().tolist() == [[2, 2]]
    assert outputs["scale_grad"].isnan().nonzero().tolist() == [[2, 0]]
