"""mhc_norm_weight_backward on the CPU twin against float64; integers bit by bit."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import Close, check_kernel

from kaas.kernel_library.families.mhc_norm_weight_backward import MhcNormWeightBackwardSpec

NEAR = {"weight_grad": Close(2.0**-22, 2.0**-22), "norm_weight_grad": Close(2.0**-22, 2.0**-18)}


def tensors(hidden: int, columns: int = 24) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(hidden)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "merged_grad": values(columns, hidden),
        "weight": values(columns, hidden),
        "norm_weight": values(hidden),
        "weight_grad": values(columns, hidden),
        "norm_weight_grad": values(hidden),
    }


@pytest.mark.parametrize(("hidden", "columns"), [(64, 24), (64 * 13, 8), (1280, 1), (1024, 64)])
def test_gradients_agree(hidden: int, columns: int) -> None:
    spec = MhcNormWeightBackwardSpec(hidden=hidden, columns=columns)
    check_kernel(spec, 28, tensors(hidden, columns), NEAR)


def test_long_runs_agree_on_every_core_count() -> None:
    check_on_every_part(MhcNormWeightBackwardSpec(hidden=4 * 7168), tensors(4 * 7168), NEAR)


def test_integers_are_exact() -> None:
    inputs = {name: tensor.mul(16).round() for name, tensor in tensors(2048).items()}
    check_kernel(MhcNormWeightBackwardSpec(hidden=2048), 28, inputs)


def test_a_nan_reaches_its_value_and_its_column_only() -> None:
    inputs = tensors(1024)
    inputs["merged_grad"][5, 100] = torch.nan
    outputs = check_kernel(MhcNormWeightBackwardSpec(hidden=1024), 28, inputs, NEAR)
    assert outputs["weight_grad"].isnan().nonzero().tolist() == [[5, 100]]
    assert outputs["norm_weight_grad"].isnan().nonzero().tolist() == [[100]]
