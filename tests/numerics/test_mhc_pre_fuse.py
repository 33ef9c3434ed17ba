"""mhc_pre_fuse on the CPU twin: against float64, and bit by bit against the four kernels it stands for."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import Close, check_kernel

from kaas.kernel_library.families.mhc_norm_mixes import MhcNormMixesSpec
from kaas.kernel_library.families.mhc_pre_apply import MhcPreApplySpec
from kaas.kernel_library.families.mhc_pre_fuse import MhcPreFuseSpec
from kaas.kernel_library.families.mhc_sinkhorn import MhcSinkhornSpec
from kaas.kernel_library.families.mhc_split_mixes import MhcSplitMixesSpec

# Logits are up to about 8, so that a rounding of one moves its exponential by 2^-21 of itself.
NEAR = {
    "post_mix": Close(2.0**-18),
    "comb_mix": Close(2.0**-16),
    "y": Close(2.0**-8 + 2.0**-18, 2.0**-15),
}


def tensors(tokens: int, hidden: int = 64, streams: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens + hidden)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    width = streams * (streams + 2)
    return {
        "mixes": values(tokens, width),
        "square_sum": (torch.rand((tokens,), generator=generator) + 0.5) * streams * hidden,
        "scale": values(3),
        "base": values(width),
        "x": values(tokens, streams, hidden).bfloat16(),
    }


@pytest.mark.parametrize("tokens", [0, 1, 56, 57, 130])
def test_mixes_and_inputs_agree(tokens: int) -> None:
    check_kernel(MhcPreFuseSpec(hidden=64), 28, tensors(tokens), NEAR)


def test_long_runs_agree_on_every_core_count() -> None:
    # A core of the smallest part takes six blocks, each in one stage: more than both rings have slots.
    check_on_every_part(MhcPreFuseSpec(hidden=64), tensors(64 * 8 * 5 + 5), NEAR)


def test_wide_streams_go_round_the_ring_in_small_groups() -> None:
    check_kernel(MhcPreFuseSpec(hidden=7168, repeat=2), 4, tensors(75, hidden=7168), NEAR)


@pytest.mark.parametrize("streams", [2, 3])
def test_other_numbers_of_streams_agree(streams: int) -> None:
    spec = MhcPreFuseSpec(
        hidden=192,
        streams=streams,
        norm_eps=1e-2,
        pre_eps=1e-3,
        post_mult=1.5,
        repeat=1,
        sinkhorn_eps=1e-4,
        tokens=130,
    )
    check_kernel(spec, 4, tensors(130, 192, streams), NEAR)


def test_the_bits_are_those_of_the_four_kernels() -> None:
    inputs = tensors(150, hidden=320)
    normed = check_kernel(
        MhcNormMixesSpec(hidden=4 * 320),
        28,
        {name: inputs[name] for name in ("mixes", "square_sum")},
        Close(2.0**-20),
    )["normed"]
    given = {"mixes": normed, "scale": inputs["scale"], "base": inputs["base"]}
    split = check_kernel(MhcSplitMixesSpec(), 28, given, Close(2.0**-20, 2.0**-20))
    comb = check_kernel(MhcSinkhornSpec(), 28, {"x": split["comb_mix"]}, Close(2.0**-18))["y"]
    applied = {"x": inputs["x"], "mix": split["pre_mix"]}
    y = check_kernel(MhcPreApplySpec(hidden=320), 28, applied, Close(2.0**-8 + 2.0**-20, 2.0**-18))["y"]
    expected = {"post_mix": split["post_mix"], "comb_mix": comb, "y": y}
    check_kernel(MhcPreFuseSpec(hidden=320), 28, inputs, expected=expected)


def test_a_nan_stays_in_its_token() -> None:
    inputs = tensors(130)
    inputs["square_sum"][3], inputs["x"][64, 1, 5] = torch.nan, torch.nan
    outputs = check_kernel(MhcPreFuseSpec(hidden=64), 28, inputs, NEAR)
    assert outputs["comb_mix"].flatten(1).isnan().all(-1).nonzero().flatten().tolist() == [3]
    assert outputs["y"][3].isnan().all()
    assert outputs["y"].isnan().nonzero().tolist()[64:] == [[64, 5]]
