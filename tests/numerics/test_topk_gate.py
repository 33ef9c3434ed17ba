"""topk_gate on the CPU twin against a stable descending sort: every index exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import check_kernel
from support.twin_kernels import kernel

from kaas.kernel_library.families.topk_gate import TopkGateSpec

SPECS = [
    (TopkGateSpec(experts=72, topk=6), 28),
    (TopkGateSpec(experts=161, topk=8, index_dtype="int32"), 4),
    (TopkGateSpec(experts=256, topk=8), 32),
    (TopkGateSpec(experts=288, topk=9), 36),
    (TopkGateSpec(experts=384, topk=2, index_dtype="int32"), 4),
    (TopkGateSpec(experts=512, topk=32), 4),
    (TopkGateSpec(experts=1024, topk=3), 4),
    (TopkGateSpec(experts=5, topk=5), 4),
    (TopkGateSpec(experts=1, topk=1, tokens=9), 4),
]


def cases() -> list[Any]:
    return [
        pytest.param(spec, cores, id=f"{spec.experts}-{spec.topk}-{spec.index_dtype}-{cores}cores")
        for spec, cores in SPECS
    ]


def scores_of(spec: TopkGateSpec, tokens: int, levels: float = 4.0) -> torch.Tensor:
    """Random rows with many ties: about ``6 * levels`` different values."""
    generator = torch.Generator().manual_seed(spec.experts + tokens)
    return (torch.randn((tokens, spec.experts), generator=generator) * levels).round() / levels


@pytest.mark.parametrize(("spec", "cores"), cases())
def test_ties_go_to_the_lower_index(spec: TopkGateSpec, cores: int) -> None:
    rows, stages = (kernel(spec, cores).lowered.choices[name] for name in ("rows", "stages"))
    # More groups per core than there are stages, the last one short.
    ragged = min(2 * cores * rows * (stages + 1) + 3, 1200)
    for tokens in (1, 5, ragged) if spec.tokens == "dynamic" else (spec.tokens,):
        check_kernel(spec, cores, {"scores": scores_of(spec, int(tokens))})


def test_a_row_of_equal_scores_gives_the_first_experts() -> None:
    spec = TopkGateSpec(experts=161, topk=8, index_dtype="int32")
    found = check_kernel(spec, 4, {"scores": torch.full((3, 161), -2.5)})
    assert torch.equal(found["topk_idx"], torch.arange(8, dtype=torch.int32).expand(3, 8))


def test_every_float_has_its_place() -> None:
    spec = TopkGateSpec(experts=72, topk=6)
    inf, nan = torch.inf, torch.nan
    negative_nan = torch.tensor([-1], dtype=torch.int32).view(torch.float32).item()
    rows = [
        [0.0, -0.0, 1e-45, -1e-45],  # the zeros are equal, subnormals are not
        [-inf] * 72,  # winners differ even where nothing is finite
        [inf, nan, 3.4e38, negative_nan, inf],
        [-nan, -inf, *[-3.4e38] * 70],
        [nan] * 72,
    ]
    scores = torch.full((len(rows), 72), -1.0)
    for row, values in enumerate(rows):
        scores[row, 64 - min(len(values), 64) : 64 - min(len(values), 64) + len(values)] = torch.tensor(
            values
        )
    scores[2, 0] = nan
    check_kernel(spec, 28, {"scores": scores})


def test_no_tokens_are_no_work() -> None:
    check_kernel(TopkGateSpec(experts=72, topk=6), 28, {"scores": torch.empty((0, 72))})
