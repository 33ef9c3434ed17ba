"""mhc_head_mix on the CPU twin against float64."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import Close, check_kernel

from kaas.kernel_library.families.mhc_head_mix import MhcHeadMixSpec

NEAR = Close(2.0**-20)


def tensors(tokens: int, streams: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return {
        "logits": torch.randn((tokens, streams), generator=generator),
        "scale": torch.randn(1, generator=generator),
        "base": torch.randn(streams, generator=generator),
    }


@pytest.mark.parametrize("tokens", [0, 1, 63, 65])
def test_mixes_agree(tokens: int) -> None:
    check_kernel(MhcHeadMixSpec(), 28, tensors(tokens), NEAR)


def test_long_runs_agree_on_every_core_count() -> None:
    check_on_every_part(MhcHeadMixSpec(eps=1e-3), tensors(64 * 8 * 13 + 5), NEAR)


@pytest.mark.parametrize("streams", [2, 3])
def test_other_numbers_of_streams_agree(streams: int) -> None:
    check_kernel(MhcHeadMixSpec(streams=streams, tokens=130), 4, tensors(130, streams), NEAR)


def test_logits_of_zero_give_one_half_exactly() -> None:
    inputs = {"logits": torch.zeros(70, 4), "scale": torch.ones(1), "base": torch.zeros(4)}
    assert (check_kernel(MhcHeadMixSpec(eps=0.0), 28, inputs)["mix"] == 0.5).all()


def test_infinities_saturate_and_a_nan_stays_in_its_value() -> None:
    inputs = tensors(70)
    inputs["scale"].fill_(1.0)
    inputs["logits"][1, 1], inputs["logits"][2, 2], inputs["logits"][66, 3] = torch.inf, -torch.inf, torch.nan
    mix = check_kernel(MhcHeadMixSpec(eps=0.0), 28, inputs, NEAR)["mix"]
    assert (mix[1, 1], mix[2, 2]) == (1.0, 0.0)
    assert mix.isnan().nonzero().tolist() == [[66, 3]]
