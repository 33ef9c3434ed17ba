"""moe_gate on the CPU twin against scores in float64 and a stable sort.

Selection is exact. Weights are exact where no score needs a function (``identity``); elsewhere scores and
weights stay within 2^-20 of their value. Random logits differ by more than that, so that ranks are certain.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import EXACT, Close, Comparison, check_kernel
from support.twin_kernels import kernel

from kaas.kernel_library.families.moe_gate import MoeGateSpec
from kaas.kernel_library.vector.row_plan import RowTile

NEAR = Close(relative=2.0**-20, absolute=2.0**-126)

UPSTREAM = MoeGateSpec(
    experts=256, topk=8, mask=True, unmapped=True, scores=True, tile=RowTile(rows=4, stages=2)
)
GROUPS = MoeGateSpec(experts=256, topk=8, scoring="sigmoid", groups=8, topk_groups=4, scores=True)
NO_BIAS = MoeGateSpec(
    experts=96,
    topk=8,
    scoring="identity",
    bias=False,
    groups=12,
    topk_groups=3,
    fixed_routing=True,
    unmapped=True,
    duplicates=1,
    index_dtype="int32",
)
SPECS: list[tuple[str, MoeGateSpec, int]] = [
    ("upstream", UPSTREAM, 4),
    (
        "everything",
        MoeGateSpec(
            experts=72,
            topk=6,
            scoring="identity",
            image_bias=True,
            mask=True,
            fixed_routing=True,
            unmapped=True,
            scores=True,
            shared_experts=2,
            duplicates=33,
        ),
        28,
    ),
    (
        "image bias alone",
        MoeGateSpec(experts=161, topk=9, scoring="sigmoid", bias=False, image_bias=True, shared_experts=1),
        32,
    ),
    ("softmax", MoeGateSpec(experts=392, topk=6, scoring="softmax", mask=True, scores=True), 36),
    ("groups", GROUPS, 4),
    ("ties between groups", NO_BIAS, 4),
    ("most of all", MoeGateSpec(experts=512, topk=30, scoring="identity", shared_experts=2, tokens=70), 4),
]


def comparisons(spec: MoeGateSpec) -> dict[str, Comparison]:
    floats: Comparison = EXACT if spec.scoring == "identity" else NEAR
    return {"topk_idx": EXACT, "unmapped_topk_idx": EXACT, "topk_weights": floats, "scores": floats}


def inputs_of(spec: MoeGateSpec, tokens: int) -> dict[str, Any]:
    """Whole quarters with many ties for ``identity``; else logits and sums with a bias well apart."""
    generator = torch.Generator().manual_seed(spec.experts + tokens)

    def quarters(*size: int) -> torch.Tensor:
        return (torch.randn(size, generator=generator) * 4).round() / 4

    def flags() -> torch.Tensor:
        return torch.rand(tokens, generator=generator) < 0.6

    experts, made = spec.experts, spec.experts + spec.shared_experts
    if spec.scoring == "identity":
        logits = quarters(tokens, experts).abs()
    else:
        steps = torch.rand((tokens, experts), generator=generator).argsort(1)
        logits = steps * (8 / experts) - 4
    inputs: dict[str, Any] = {"logits": logits, "routed_scaling_factor": 2.5}
    if spec.bias:
        inputs["bias"] = quarters(experts) if spec.scoring == "identity" else torch.zeros(experts)
    if spec.image_bias:
        # Far apart from each other, so that sums with scores between 0 and 1 are ranked alike everywhere.
        apart = torch.rand(experts, generator=generator).argsort().float() * 3
        inputs["image_bias"] = quarters(experts) if spec.scoring == "identity" else apart
        inputs["image_token_mask"] = flags()
    if spec.mask:
        inputs["mask"] = flags()
    if spec.fixed_routing:
        inputs["fix_routing_mask"] = flags()
        given = torch.randint(-1, experts, (tokens, spec.topk), generator=generator)
        inputs["unmapped_topk_idx"] = given.to(getattr(torch, spec.index_dtype))
    if spec.duplicates:
        table = torch.randint(0, 2**31 - 1, (made, spec.duplicates), generator=generator)
        inputs["to_physical_map"] = table.int()
    if spec.duplicates > 1:
        count = torch.randint(1, spec.duplicates + 1, (made,), generator=generator)
        inputs["logical_count"], inputs["ep_rank"] = count.int(), 4321
    return inputs


@pytest.mark.parametrize(
    ("spec", "cores"), [pytest.param(spec, cores, id=name) for name, spec, cores in SPECS]
)
def test_tokens_are_routed_and_weighed(spec: MoeGateSpec, cores: int) -> None:
    rows, stages = (kernel(spec, cores).lowered.choices[name] for name in ("rows", "stages"))
    # More groups per core than there are stages, the last one short.
    ragged = min(2 * cores * rows * (stages + 1) + 3, 200)
    for tokens in (1, ragged) if spec.tokens == "dynamic" else (spec.tokens,):
        check_kernel(spec, cores, inputs_of(spec, int(tokens)), comparisons(spec))


def test_equal_logits_choose_the_first_experts_in_order() -> None:
    inputs = {"logits": torch.zeros((2, 256)), "bias": torch.zeros(256), "routed_scaling_factor": 1.0}
    found = check_kernel(GROUPS, 4, inputs, comparisons(GROUPS))
    assert torch.equal(found["topk_idx"], torch.arange(8).expand(2, 8))
    assert torch.equal(found["topk_weights"], torch.full((2, 8), 0.125))


def test_scores_keep_their_digits_from_the_smallest_to_the_largest_logits() -> None:
    ladder = torch.cat(
        [torch.linspace(-170, 170, 200), torch.logspace(-38, 38, 28), -torch.logspace(-38, 2, 28)]
    )
    for spec, least in ((UPSTREAM, -170.0), (GROUPS, -87.0)):
        logits = ladder.clamp(min=least).expand(4, 256).contiguous()
        inputs = inputs_of(spec, 4) | {"logits": logits}
        if spec is GROUPS:  # so many sigmoids are 1 that the bias must tell them apart
            inputs["bias"] = -4 * torch.arange(256.0)
        check_kernel(spec, 4, inputs, comparisons(spec))


def test_a_token_without_any_score_has_weight_zero() -> None:
    found = check_kernel(NO_BIAS, 4, inputs_of(NO_BIAS, 3) | {"logits": torch.zeros((3, 96))})
    assert (found["topk_weights"] == 0).all()


def test_a_token_that_is_not_finite_touches_no_other() -> None:
    inputs = inputs_of(UPSTREAM, 5) | {"mask": torch.tensor([True, True, True, False, True])}
    clean = check_kernel(UPSTREAM, 4, inputs, comparisons(UPSTREAM))
    inputs["logits"] = inputs["logits"].clone()
    inputs["logits"][1, 7], inputs["logits"][3] = torch.nan, torch.inf
    built, found = kernel(UPSTREAM, 4), {name: value.clone() for name, value in clean.items()}
    built.launch(
        inputs["logits"],
        inputs["bias"],
        inputs["mask"],
        *(found[name] for name in ("topk_idx", "topk_weights", "unmapped_topk_idx", "scores")),
        2.5,
    )
    assert found["topk_weights"][1].isnan().any()
    for name, value in found.items():
        assert torch.equal(value[[0, 2, 3, 4]], clean[name][[0, 2, 3, 4]])


def test_copies_of_an_expert_are_taken_in_turn_far_into_a_batch() -> None:
    spec = MoeGateSpec(experts=4, topk=2, scoring="identity", bias=False, duplicates=256)
    tokens = 5000  # beyond the twelve bits that are looked at first
    table = torch.arange(4 * 256, dtype=torch.int32).view(4, 256)
    inputs = {
        "logits": torch.tensor([0.0, 3.0, 1.0, 2.0]).expand(tokens, 4).contiguous(),
        "to_physical_map": table,
        "logical_count": torch.tensor([1, 255, 2, 256], dtype=torch.int32),
        "ep_rank": 2**23 + 12345,
        "routed_scaling_factor": 1.0,
    }
    check_kernel(spec, 4, inputs)


def test_no_tokens_are_no_work() -> None:
    check_kernel(UPSTREAM, 4, inputs_of(UPSTREAM, 0))
