"""engram_gate on the CPU twin against float64, in every schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import EXACT, CalcDiff, Close, check_kernel

from kaas.kernel_library.families.engram_gate import EngramGateSpec

LIMIT = CalcDiff(2e-10)
CASES = [
    (EngramGateSpec(hidden=1024), 4),
    (EngramGateSpec(hidden=576, save=False, in_place=True, image_mask=True), 28),
    (EngramGateSpec(hidden=192, streams=3, image_mask=True), 4),
    (EngramGateSpec(hidden=7168), 32),
]
IDS = [f"{spec.streams}x{spec.hidden}-{cores}cores" for spec, cores in CASES]


def inputs_for(spec: EngramGateSpec, tokens: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens)

    def values(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).bfloat16()

    inputs = {
        "x": values(tokens, spec.streams, spec.hidden),
        "kv": values(tokens, spec.streams + 1, spec.hidden),
        "weight": values(spec.streams, spec.hidden).float() * values(spec.streams, spec.hidden).float(),
    }
    if spec.image_mask:
        inputs["image_token_mask"] = torch.rand(tokens, generator=generator) < 0.3
    return inputs


@pytest.mark.parametrize(("spec", "cores"), CASES, ids=IDS)
@pytest.mark.parametrize("tokens", [1, 5, 150])
def test_values_are_gated_and_added(spec: EngramGateSpec, cores: int, tokens: int) -> None:
    if spec.hidden == 7168:
        tokens = min(tokens, 70)
    check_kernel(spec, cores, inputs_for(spec, tokens), LIMIT)


def test_tokens_of_an_image_keep_their_bits() -> None:
    spec, cores = CASES[2]
    inputs = inputs_for(spec, 5)
    inputs["image_token_mask"][:] = True
    inputs["x"][0, 0, :2] = torch.tensor([-0.0, torch.nan])
    inputs["kv"][:] = torch.inf
    outputs = check_kernel(spec, cores, inputs, EXACT)
    assert outputs["y"].view(torch.int16)[0, 0, 0] == inputs["x"].view(torch.int16)[0, 0, 0]
    assert all((outputs[name] == 0).all() for name in ("dot", "gate", "rstd_x", "rstd_k"))


def test_orthogonal_streams_open_the_gate_as_the_clamp_says() -> None:
    spec = EngramGateSpec(hidden=64, streams=1, clamp=0.25)
    inputs = inputs_for(spec, 3)
    inputs["weight"].zero_()
    gate = check_kernel(spec, 4, inputs, LIMIT)["gate"]
    assert torch.allclose(gate, torch.tensor(0.5).sigmoid())


def test_results_do_not_depend_on_the_core_count() -> None:
    spec = CASES[0][0]
    inputs = inputs_for(spec, 77)
    few, many = (check_kernel(spec, cores, inputs, LIMIT) for cores in (4, 32))
    assert all(few[name].equal(many[name]) for name in few)


def test_a_stream_with_a_nan_stays_alone() -> None:
    spec, cores = CASES[0]
    inputs = inputs_for(spec, 3)
    inputs["x"][1, 2, 7] = torch.nan
    y = check_kernel(spec, cores, inputs, Close(relative=2.0**-7, absolute=2.0**-8))["y"]
    assert y.isnan().sum() == spec.hidden
    assert y[1, 2].isnan().all()
