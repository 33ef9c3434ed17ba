"""engram_gate_backward on the CPU twin against torch's own differentiation in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import EXACT, CalcDiff, Close, check_kernel, reference_of

from kaas.kernel_library.families.engram_gate import EngramGateSpec
from kaas.kernel_library.families.engram_gate_backward import SAVED, EngramGateBackwardSpec

LIMIT = CalcDiff(1e-8)
CASES = [
    (EngramGateBackwardSpec(hidden=1024), 4),
    (EngramGateBackwardSpec(hidden=576, streams=3, partials=5, image_mask=True), 4),
    (EngramGateBackwardSpec(hidden=64, streams=1, partials=3, clamp=0.05), 28),
    (EngramGateBackwardSpec(hidden=7168, partials=4), 32),
]
IDS = [f"{spec.streams}x{spec.hidden}-{spec.partials}partials-{cores}cores" for spec, cores in CASES]


def inputs_for(spec: EngramGateBackwardSpec, tokens: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens)

    def values(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).bfloat16()

    inputs = {
        "grad_y": values(tokens, spec.streams, spec.hidden),
        "x": values(tokens, spec.streams, spec.hidden),
        "kv": values(tokens, spec.streams + 1, spec.hidden),
        "weight": values(spec.streams, spec.hidden).float() * values(spec.streams, spec.hidden).float(),
    }
    if spec.image_mask:
        inputs["image_token_mask"] = torch.rand(tokens, generator=generator) < 0.3
    forward = EngramGateSpec(
        hidden=spec.hidden, streams=spec.streams, clamp=spec.clamp, image_mask=spec.image_mask
    )
    saved = reference_of(forward, inputs)
    return inputs | {name: saved[name].float() for name in SAVED}


@pytest.mark.parametrize(("spec", "cores"), CASES, ids=IDS)
@pytest.mark.parametrize("tokens", [1, 7, 83])
def test_gradients_are_those_of_the_forward_formula(
    spec: EngramGateBackwardSpec, cores: int, tokens: int
) -> None:
    if spec.hidden == 7168:
        tokens = min(tokens, 30)
    check_kernel(spec, cores, inputs_for(spec, tokens), LIMIT)


def test_tokens_of_an_image_pass_their_gradient_on() -> None:
    spec, cores = CASES[1]
    inputs = inputs_for(spec, 7)
    inputs["image_token_mask"][:] = True
    for name in ("x", "kv", *SAVED):
        inputs[name] = torch.full_like(inputs[name], torch.inf)
    zeros = torch.zeros((spec.partials, spec.streams, spec.hidden))
    expected = {"grad_x": inputs["grad_y"], "grad_kv": torch.zeros_like(inputs["kv"])}
    check_kernel(spec, cores, inputs, EXACT, expected={**expected, "grad_weight_partial": zeros})


def test_a_dot_product_of_zero_gives_no_gradient() -> None:
    spec = EngramGateBackwardSpec(hidden=64, streams=1, clamp=0.0)
    inputs = inputs_for(spec, 3)
    inputs["dot"].zero_()
    grad_value = (inputs["grad_y"].float() * inputs["gate"][..., None]).bfloat16()
    outputs = check_kernel(
        spec,
        4,
        inputs,
        Close(),
        expected={
            "grad_x": inputs["grad_y"],
            "grad_kv": torch.cat((torch.zeros_like(grad_value), grad_value), 1),
            "grad_weight_partial": torch.zeros((16, 1, 64)),
        },
    )
    assert (outputs["grad_kv"][:, 0] == 0).all()


def test_without_tokens_the_partial_sums_are_zero() -> None:
    spec, cores = CASES[0]
    outputs = check_kernel(spec, cores, inputs_for(spec, 0), EXACT)
    assert (outputs["grad_weight_partial"] == 0).all()


def test_results_do_not_depend_on_the_core_count() -> None:
    spec = CASES[0][0]
    inputs = inputs_for(spec, 50)
    few, many = (check_kernel(spec, cores, inputs, LIMIT) for cores in (4, 32))
    assert all(few[name].equal(many[name]) for name in few)
