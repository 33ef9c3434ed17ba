"""mhc_split_mixes on the CPU twin against float64; the residual mixes of small integers to the last bit."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import EXACT, Close, check_kernel

from kaas.kernel_library.families.mhc_split_mixes import MhcSplitMixesSpec

NEAR = Close(2.0**-20, 2.0**-20)


def tensors(tokens: int, streams: int = 4, spread: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    width = streams * (streams + 2)
    return {
        "mixes": torch.randn((tokens, width), generator=generator) * spread,
        "scale": torch.randn(3, generator=generator),
        "base": torch.randn(width, generator=generator),
    }


@pytest.mark.parametrize("tokens", [0, 1, 63, 65])
def test_mixes_agree(tokens: int) -> None:
    check_kernel(MhcSplitMixesSpec(), 28, tensors(tokens), NEAR)


def test_long_runs_agree_on_every_core_count() -> None:
    check_on_every_part(MhcSplitMixesSpec(pre_eps=1e-3, post_mult=1.5), tensors(64 * 8 * 6 + 5), NEAR)


@pytest.mark.parametrize("streams", [2, 3])
def test_other_numbers_of_streams_agree(streams: int) -> None:
    check_kernel(MhcSplitMixesSpec(streams=streams, tokens=130), 4, tensors(130, streams), NEAR)


def test_residual_mixes_of_integers_are_exact() -> None:
    inputs = {name: tensor.mul(8).round() for name, tensor in tensors(200).items()}
    check_kernel(MhcSplitMixesSpec(), 28, inputs, {"pre_mix": NEAR, "post_mix": NEAR, "comb_mix": EXACT})


def test_far_logits_saturate() -> None:
    inputs = tensors(3)
    inputs["scale"].fill_(1.0)
    inputs["mixes"][0], inputs["mixes"][1], inputs["mixes"][2] = torch.inf, -torch.inf, 1e6
    outputs = check_kernel(MhcSplitMixesSpec(pre_eps=0.0), 28, inputs, NEAR)
    assert outputs["pre_mix"].tolist() == [[1.0] * 4, [0.0] * 4, [1.0] * 4]
    assert outputs["post_mix"].tolist() == [[2.0] * 4, [0.0] * 4, [2.0] * 4]


def test_a_nan_stays_in_its_value() -> None:
    inputs = tensors(70)
    inputs["mixes"][65, 5] = torch.nan
    outputs = check_kernel(MhcSplitMixesSpec(), 28, inputs, NEAR)
    assert outputs["post_mix"].isnan().nonzero().tolist() == [[65, 1]]
    assert not outputs["pre_mix"].isnan().any()
