"""mhc_sinkhorn_backward on the CPU twin against automatic differentiation in float64.

Tolerance: 1e-5 of the largest gradient that comes in; the differences cancel, so it is absolute.
"""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import Close, check_kernel

from kaas.kernel_library.families.mhc_sinkhorn_backward import MhcSinkhornBackwardSpec


def tensors(tokens: int, streams: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    shape = (tokens, streams, streams)
    return {
        "y_grad": torch.randn(shape, generator=generator),
        "x": torch.randn(shape, generator=generator) * 2,
    }


@pytest.mark.parametrize("repeat", [1, 2, 20])
@pytest.mark.parametrize("tokens", [0, 1, 65])
def test_gradients_agree(repeat: int, tokens: int) -> None:
    check_kernel(MhcSinkhornBackwardSpec(repeat=repeat), 28, tensors(tokens), Close(0.0, 1e-5))


def test_long_runs_agree_on_every_core_count() -> None:
    check_on_every_part(MhcSinkhornBackwardSpec(repeat=4), tensors(64 * 8 * 6 + 5), Close(0.0, 1e-5))


@pytest.mark.parametrize("streams", [2, 3])
def test_other_numbers_of_streams_agree(streams: int) -> None:
    spec = MhcSinkhornBackwardSpec(streams=streams, repeat=5, tokens=130)
    check_kernel(spec, 4, tensors(130, streams), Close(0.0, 1e-5))


def test_a_nan_stays_in_its_token() -> None:
    inputs = tensors(130)
    inputs["y_grad"][70, 0, 1] = torch.nan
    outputs = check_kernel(MhcSinkhornBackwardSpec(), 28, inputs, Close(0.0, 1e-5))
    assert outputs["x_grad"].isnan().flatten(1).any(-1).nonzero().flatten().tolist() == [70]
