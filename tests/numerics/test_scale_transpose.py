"""scale_transpose on the CPU twin: bit-exact against its reference, in every schedule."""

from __future__ import annotations

import pytest
import torch
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.scale_transpose import ScaleTransposeSpec


def scales_of(*shape: int) -> torch.Tensor:
    """Powers of two of every exponent."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-127, 128, shape, generator=generator).double().exp2().float()


@pytest.mark.parametrize(("down", "across"), [(1, 1), (5, 18), (75, 40), (3, 131)])
def test_scales_are_packed_along_both_axes(down: int, across: int) -> None:
    check_kernel(ScaleTransposeSpec(), 4, {"scales": scales_of(down, across)})


def test_batches_of_weights_with_static_extents() -> None:
    spec = ScaleTransposeSpec(n=160, k=576, batched=True)
    for cores in (4, 28):
        check_kernel(spec, cores, {"scales": scales_of(7, 5, 18)})


def test_a_missing_last_block_is_zero_and_what_is_no_power_of_two_is_nan() -> None:
    scales = torch.tensor([[1.0, 3.0, 0.0], [-1.0, torch.inf, torch.nan], [2.0, 0.5, 1.0]])
    found = check_kernel(ScaleTransposeSpec(), 4, {"scales": scales})
    assert found["along_k"].view(torch.uint8).view(2, 96, 2)[:, ::32].tolist() == [
        [[127, 255], [255, 255], [128, 126]],
        [[0, 0], [255, 0], [127, 0]],
    ]
    assert found["along_n"].view(torch.uint8).view(2, 96, 2)[1, ::32].tolist() == [
        [128, 0],
        [126, 0],
        [127, 0],
    ]
