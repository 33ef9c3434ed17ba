"""aux_fi on the CPU twin against float64."""

from __future__ import annotations

import pytest
import torch
from support.kernel_checks import Close, check_kernel

from kaas.kernel_library.families.aux_fi import AuxFiSpec

SPEC = AuxFiSpec(experts=96, topk=6)


@pytest.mark.parametrize("tokens", [0, 1, 333])
def test_loads_are_relative_to_an_even_one(tokens: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    indices = torch.randint(-1, 96, (tokens, 6), generator=generator)
    check_kernel(SPEC, 28, {"topk_idx": indices, "num_aux_topk": 5}, Close(relative=2.0**-21))


def test_an_even_load_is_one() -> None:
    indices = torch.arange(96 * 4).remainder(96).view(64, 6)
    found = check_kernel(SPEC, 28, {"topk_idx": indices, "num_aux_topk": 6})
    assert (found["fi"] == 1).all()


def test_experts_without_tokens_have_none() -> None:
    indices = torch.full((40, 6), 95)
    found = check_kernel(SPEC, 28, {"topk_idx": indices, "num_aux_topk": 6})
    assert found["fi"].tolist() == [0.0] * 95 + [96.0]
