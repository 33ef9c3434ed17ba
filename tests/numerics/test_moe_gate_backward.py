"""moe_gate_backward on the CPU twin against float64: 2^-18 of the largest term, exact where fp32 is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import Close, check_kernel
from support.twin_kernels import kernel

from kaas.kernel_library.families.moe_gate_backward import MoeGateBackwardSpec
from kaas.kernel_library.vector.row_plan import RowTile

SMALL_STAGES = RowTile(rows=3, stages=2)
ROUTED = MoeGateBackwardSpec(experts=256, topk=8, tile=SMALL_STAGES)
AUXILIARY = MoeGateBackwardSpec(experts=72, topk=6, auxiliary=True, index_dtype="int32", tile=SMALL_STAGES)
EXACT_ONE = MoeGateBackwardSpec(experts=161, topk=4, scoring="identity", auxiliary=True)


def inputs_of(spec: MoeGateBackwardSpec, tokens: int, sequences: int = 1) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens + spec.experts)
    logits = torch.randn((tokens, spec.experts), generator=generator) * 3
    scores = torch.nn.functional.softplus(logits.double()).sqrt().float()
    shape = (tokens, spec.topk)
    inputs: dict[str, Any] = {
        "scores": scores.sigmoid() if spec.scoring == "sigmoid" else scores,
        # With replacement: fixed routing may name an expert twice, and -1 is none.
        "topk_idx": torch.randint(-1, spec.experts, shape, generator=generator).to(
            getattr(torch, spec.index_dtype)
        ),
        "topk_weights": torch.rand(shape, generator=generator),
        "grad_topk_weights": torch.randn(shape, generator=generator),
        "routed_scaling_factor": 2.5,
    }
    if spec.auxiliary:
        inputs["mask"] = torch.rand(tokens, generator=generator) < 0.7
        inputs["grad_scores_sum"] = torch.randn((sequences, spec.experts), generator=generator)
    return inputs


def close_to_terms(spec: MoeGateBackwardSpec, inputs: dict[str, Any]) -> Close:
    """2^-18 of the value and of the largest term that any value is made of."""
    indices = inputs["topk_idx"].long()
    own = inputs["scores"].double().gather(1, indices.clamp(min=0)) * (indices >= 0)
    grads = inputs["grad_topk_weights"].double().abs() * (indices >= 0)
    terms = inputs["routed_scaling_factor"] * grads + (grads * inputs["topk_weights"]).sum(1, keepdim=True)
    largest = (terms / (own.sum(1, keepdim=True) + 1e-20)).where(indices >= 0, 0.0).sum(1).max()
    if spec.auxiliary:
        largest += 2 * inputs["grad_scores_sum"].abs().max() / inputs["scores"].sum(1).min()
    return Close(relative=2.0**-18, absolute=2.0**-18 * float(largest))


@pytest.mark.parametrize(
    ("spec", "cores", "tokens", "sequences"),
    [
        pytest.param(ROUTED, 4, 1, 1, id="one token"),
        pytest.param(ROUTED, 4, 127, 1, id="short last stage"),
        pytest.param(AUXILIARY, 4, 126, 1, id="one sequence"),
        pytest.param(AUXILIARY, 4, 126, 9, id="stages within and across sequences"),
        pytest.param(AUXILIARY, 4, 126, 63, id="several sequences in a stage"),
        pytest.param(AUXILIARY, 4, 50, 50, id="a sequence per token"),
        pytest.param(
            MoeGateBackwardSpec(experts=384, topk=32, scoring="sigmoid", tokens=90), 36, 90, 1, id="sigmoid"
        ),
        pytest.param(MoeGateBackwardSpec(experts=512, topk=8, auxiliary=True), 28, 300, 4, id="wide rows"),
    ],
)
def test_gradients_agree(spec: MoeGateBackwardSpec, cores: int, tokens: int, sequences: int) -> None:
    inputs = inputs_of(spec, tokens, sequences)
    check_kernel(spec, cores, inputs, close_to_terms(spec, inputs))


def test_whole_numbers_give_exact_gradients() -> None:
    tokens, experts = 70, 161
    generator = torch.Generator().manual_seed(0)

    def whole(low: int, high: int, *size: int) -> torch.Tensor:
        return torch.randint(low, high, size, generator=generator).float()

    # Four chosen scores of 2 sum to 8, and all of a row to 256: every quotient is exact.
    scores = torch.zeros((tokens, experts))
    scores[:, :128] = 2.0
    inputs = {
        "scores": scores,
        "topk_idx": torch.randint(0, 128, (tokens, 4), generator=generator),
        "topk_weights": whole(0, 8, tokens, 4),
        "grad_topk_weights": whole(-8, 8, tokens, 4),
        "mask": torch.rand(tokens, generator=generator) < 0.5,
        "grad_scores_sum": whole(-8, 8, 7, experts),
        "routed_scaling_factor": 4.0,
    }
    check_kernel(EXACT_ONE, 4, inputs)


def test_slopes_keep_their_digits_for_small_and_large_scores() -> None:
    scores = torch.logspace(-30, 9, 256).expand(8, 256).contiguous()
    inputs = inputs_of(ROUTED, 8) | {"scores": scores}
    inputs["topk_idx"] = torch.arange(0, 256, 4).view(8, 8).flip(0).contiguous()
    inputs["topk_weights"] = torch.zeros((8, 8))  # nothing to cancel
    check_kernel(ROUTED, 4, inputs, Close(relative=2.0**-20, absolute=2.0**-126))


def test_a_token_without_experts_has_no_gradient() -> None:
    inputs = inputs_of(ROUTED, 5)
    inputs["topk_idx"][2] = -1
    inputs["scores"][2] = 0.0
    inputs["grad_topk_weights"][2], inputs["topk_weights"][2] = torch.nan, torch.inf
    found = check_kernel(ROUTED, 4, inputs, close_to_terms(ROUTED, inputs_of(ROUTED, 5)))
    assert (found["grad_logits"][2] == 0).all()


def test_a_masked_token_without_scores_has_no_auxiliary_gradient() -> None:
    inputs = inputs_of(AUXILIARY, 4, 2)
    limit = close_to_terms(AUXILIARY, inputs)
    inputs["mask"][1], inputs["scores"][1], inputs["topk_idx"][1] = False, 0.0, -1
    found = check_kernel(AUXILIARY, 4, inputs, limit)
    assert (found["grad_logits"][1] == 0).all()


def test_no_tokens_are_no_work() -> None:
    check_kernel(ROUTED, 4, inputs_of(ROUTED, 0))
    assert kernel(ROUTED, 4).lowered.choices["rows"] == 3
