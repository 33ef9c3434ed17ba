"""engram_weight_gradient on the CPU twin against float64, in every schedule."""

from __future__ import annotations

import pytest
import torch
from support.kernel_checks import EXACT, CalcDiff, check_kernel

from kaas.kernel_library.families.engram_weight_gradient import EngramWeightGradientSpec

CASES = [
    (EngramWeightGradientSpec(hidden=64, streams=1, partials=1), 4),
    (EngramWeightGradientSpec(hidden=7168), 4),
    (EngramWeightGradientSpec(hidden=4160, streams=3, partials=33), 28),
    (EngramWeightGradientSpec(hidden=1024, partials=200), 36),
]
IDS = [f"{spec.partials}x{spec.streams}x{spec.hidden}-{cores}cores" for spec, cores in CASES]


def inputs_for(spec: EngramWeightGradientSpec, *, integers: bool) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(spec.hidden)

    def values(*size: int) -> torch.Tensor:
        if integers:
            return torch.randint(-4, 5, size, generator=generator).float()
        return torch.randn(size, generator=generator)

    shape = (spec.streams, spec.hidden)
    return {
        "grad_weight_partial": values(spec.partials, *shape),
        "weight_hidden": values(*shape).bfloat16(),
        "weight_embed": values(*shape).bfloat16(),
        "grad_weight_hidden": values(*shape),
        "grad_weight_embed": values(*shape),
    }


@pytest.mark.parametrize(("spec", "cores"), CASES, ids=IDS)
def test_partial_sums_become_gradients(spec: EngramWeightGradientSpec, cores: int) -> None:
    check_kernel(spec, cores, inputs_for(spec, integers=True), EXACT)
    check_kernel(spec, cores, inputs_for(spec, integers=False), CalcDiff(1e-10))


def test_results_do_not_depend_on_the_core_count() -> None:
    spec = CASES[1][0]
    inputs = inputs_for(spec, integers=False)
    few, many = (check_kernel(spec, cores, inputs, CalcDiff(1e-10)) for cores in (4, 32))
    assert all(few[name].equal(many[name]) for name in few)
