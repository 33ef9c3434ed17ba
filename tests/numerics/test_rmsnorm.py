"""rmsnorm on the CPU twin against torch in float64, in eager order and under adversarial schedules.

Tolerance: one rounding to the dtype, and 2^-20 of the value for the fp32 arithmetic before it.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from support.twin_kernels import TORCH_DTYPES, aligned, in_every_schedule, kernel

from kaas.kernel_library.families.rmsnorm import RmsNormSpec

DTYPES = ("bf16", "fp16", "fp32")
HALF_ULP = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}
LEAST_NORMAL = {"bf16": 2.0**-126, "fp16": 2.0**-14, "fp32": 2.0**-126}
ARITHMETIC = 2.0**-20


def cases() -> list[Any]:
    """hidden x dtype with every pair of options, and core counts in turn."""
    found = []
    for index, (hidden, dtype) in enumerate(itertools.product((576, 1008, 1536, 4096, 7168), DTYPES)):
        for pair in range(2):
            residual, weight = ((False, True), (True, False), (True, True), (False, False))[
                (2 * index + pair) % 4
            ]
            cores = (28, 32, 36)[index % 3]
            words = [str(hidden), dtype, *(["residual"] if residual else []), *(["weight"] if weight else [])]
            spec = RmsNormSpec(hidden=hidden, dtype=dtype, residual=residual, weight=weight)
            found.append(pytest.param(spec, cores, id="-".join([*words, f"{cores}cores"])))
    return found


def check(spec: RmsNormSpec, cores: int, tokens: int) -> None:
    built = kernel(spec, cores)
    generator = torch.Generator().manual_seed(tokens)
    dtype = TORCH_DTYPES[spec.dtype]

    def values(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(dtype)

    x, old, weight = values(tokens, spec.hidden), values(tokens, spec.hidden), values(spec.hidden)
    total = (x.float() + old.float()).to(dtype) if spec.residual else x
    wide = total.double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + spec.eps)
    if spec.weight:
        expected = expected * weight.double()
    margin = (
        expected.abs() * (HALF_ULP[spec.dtype] + ARITHMETIC)
        + LEAST_NORMAL[spec.dtype] * HALF_ULP[spec.dtype] * 2
    )

    def run() -> None:
        residual, y = aligned(old.clone()), aligned(torch.full_like(x, torch.nan))
        arguments = [
            aligned(x),
            *([residual] if spec.residual else []),
            *([aligned(weight)] if spec.weight else []),
            y,
        ]
        built.launch(*arguments)
        assert ((y.double() - expected).abs() <= margin).all()
        if spec.residual:
            assert torch.equal(residual, total)

    in_every_schedule(run)


@pytest.mark.parametrize(("spec", "cores"), cases())
@pytest.mark.parametrize("tokens", ["one", "few", "ragged"])
def test_rows_are_normalised(spec: RmsNormSpec, cores: int, tokens: str) -> None:
    # The last count gives every vector core more stages than it has slots, and one of them a short stage.
    rows, stages = (kernel(spec, cores).lowered.choices[name] for name in ("rows", "stages"))
    ragged = min(2 * cores * rows * (stages + 1) + 3, 3_000_000 // spec.hidden)
    check(spec, cores, {"one": 1, "few": 5, "ragged": ragged}[tokens])


def test_static_tokens_agree() -> None:
    for tokens in (1, 55, 56, 57, 300):
        check(RmsNormSpec(hidden=128, tokens=tokens), 28, tokens)


@pytest.mark.parametrize(
    "spec",
    [RmsNormSpec(hidden=64), RmsNormSpec(hidden=80), RmsNormSpec(hidden=32768, residual=True)],
    ids=["64", "80", "32768"],
)
def test_narrowest_and_widest_rows_agree(spec: RmsNormSpec) -> None:
    check(spec, 4, 30)


def test_no_tokens_are_no_work() -> None:
    empty = torch.empty((0, 128), dtype=torch.bfloat16)
    kernel(RmsNormSpec(hidden=128, weight=False), 28).launch(empty, empty.clone())


def test_infinities_and_nans_stay_in_their_row() -> None:
    x = aligned(torch.ones((3, 128), dtype=torch.bfloat16))
    x[0, 3], x[1, 5] = torch.nan, torch.inf
    y = aligned(torch.zeros_like(x))
    kernel(RmsNormSpec(hidden=128, weight=False), 28).launch(x, y)
    assert torch.isnan(y[0]).all()
    assert torch.isnan(y[1, 5])
    assert (y[2] == 1).all()
