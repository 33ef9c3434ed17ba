"""mhc_sinkhorn on the CPU twin against float64, every cell to 2^-18 of its value, far logits to 2^-16."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import Close, check_kernel

from kaas.kernel_library.families.mhc_sinkhorn import MhcSinkhornSpec


def matrices(tokens: int, streams: int = 4, spread: float = 2.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return {"x": torch.randn((tokens, streams, streams), generator=generator) * spread}


@pytest.mark.parametrize("repeat", [1, 2, 20])
@pytest.mark.parametrize("tokens", [0, 1, 63, 65])
def test_matrices_are_normalised(repeat: int, tokens: int) -> None:
    check_kernel(MhcSinkhornSpec(repeat=repeat), 28, matrices(tokens), Close(2.0**-18))


def test_long_runs_agree_on_every_core_count() -> None:
    # More blocks per core than there are stages on the smallest part, and a short one at the end.
    check_on_every_part(MhcSinkhornSpec(), matrices(64 * 8 * 6 + 5), Close(2.0**-18))


@pytest.mark.parametrize("streams", [2, 3])
def test_other_numbers_of_streams_agree(streams: int) -> None:
    check_kernel(
        MhcSinkhornSpec(streams=streams, repeat=5, tokens=130), 4, matrices(130, streams), Close(2.0**-18)
    )


def test_equal_logits_give_equal_cells() -> None:
    spec = MhcSinkhornSpec(eps=2.0**-100)
    outputs = check_kernel(spec, 28, {"x": torch.full((70, 4, 4), 3.0)})
    assert (outputs["y"] == 0.25).all()


def test_far_logits_neither_overflow_nor_lose_the_small_cells() -> None:
    inputs = matrices(100, spread=1000.0)
    check_kernel(MhcSinkhornSpec(eps=1e-3), 28, inputs, Close(2.0**-17, 2.0**-126))


@pytest.mark.parametrize("spread", [50.0, 300.0])
@pytest.mark.parametrize(("eps", "repeat"), [(1e-6, 32), (2.0**-100, 10)])
def test_far_logits_stay_within_the_promise_down_to_the_least_eps(
    eps: float, repeat: int, spread: float
) -> None:
    inputs = matrices(65, spread=spread)
    check_kernel(MhcSinkhornSpec(eps=eps, repeat=repeat), 4, inputs, Close(2.0**-16, 2.0**-126))


def test_a_nan_or_an_infinity_stays_in_its_token() -> None:
    inputs = matrices(130)
    inputs["x"][3, 1, 2], inputs["x"][64, 0, 0] = torch.nan, torch.inf
    outputs = check_kernel(MhcSinkhornSpec(), 28, inputs, Close(2.0**-18))
    assert outputs["y"].isnan().flatten(1).any(-1).nonzero().flatten().tolist() == [3, 64]
