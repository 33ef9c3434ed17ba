"""rmsnorm_backward on the CPU twin against torch in float64, in every schedule.

Tolerance: one rounding to the dtype, and 2^-20 of the largest sum of magnitudes behind a result.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from support.kernel_checks import Close, check_kernel
from support.twin_kernels import TORCH_DTYPES, kernel

from kaas.kernel_library.families.rmsnorm_backward import RmsNormBackwardSpec

HALF_ULP = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}
ARITHMETIC = 2.0**-20
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"weight": False, "residual_grad": True, "out_scale": 0.5},
    {"residual_grad": True, "accumulate": True, "dtype_dweight": "bf16"},
    {"out_scale": -3.0, "accumulate": True},
)


def inputs_of(spec: RmsNormBackwardSpec, tokens: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)

    def values(dtype: str, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(TORCH_DTYPES[dtype])

    inputs = {name: values(spec.dtype, tokens, spec.hidden) for name in ("dy", "x")}
    inputs["rstd"] = 1 / (inputs["x"].float().square().mean(-1) + 1e-6).sqrt()
    if spec.weight:
        inputs["weight"] = values(spec.dtype, spec.hidden)
    if spec.residual_grad:
        inputs["residual_grad"] = values(spec.dtype, tokens, spec.hidden)
    if spec.accumulate:
        inputs["dweight"] = values(spec.dtype_dweight, spec.hidden)
    return inputs


def tolerances(spec: RmsNormBackwardSpec, inputs: dict[str, torch.Tensor]) -> dict[str, Close]:
    """From the magnitudes of what is added up."""
    size = {name: value.double().abs() for name, value in inputs.items()}
    normalised, dy = size["x"] * size["rstd"][:, None], size["dy"] * abs(spec.out_scale)
    gradient = dy * size["weight"] if spec.weight else dy
    mean = (normalised * gradient).mean(-1, keepdim=True)
    dx = (gradient + normalised * mean) * size["rstd"][:, None] + size.get("residual_grad", 0.0)
    column = (normalised * dy).sum(0) + size.get("dweight", 0.0)

    def close(dtype: str, largest: torch.Tensor) -> Close:
        return Close(HALF_ULP[dtype], ARITHMETIC * float(largest.max()) if largest.numel() else 0.0)

    return {
        "dx": close(spec.dtype, dx),
        "partials": close("fp32", column),
        "dweight": close(spec.dtype_dweight, column),
    }


def check(spec: RmsNormBackwardSpec, cores: int, tokens: int) -> dict[str, torch.Tensor]:
    inputs = inputs_of(spec, tokens)
    return check_kernel(spec, cores, inputs, tolerances(spec, inputs))


def cases() -> list[Any]:
    """Each option with two dtypes; hidden extents and core counts in turn."""
    found = []
    for index, (options, turn) in enumerate(itertools.product(OPTIONS, range(2))):
        dtype = ("bf16", "fp32", "fp16")[(index // 2 + turn) % 3]
        hidden, cores = (80, 576, 1008)[index % 3], (4, 28, 36)[index % 3]
        spec = RmsNormBackwardSpec(hidden=hidden, dtype=dtype, **options)
        found.append(pytest.param(spec, cores, id="-".join([str(hidden), dtype, *options, f"{cores}cores"])))
    return found


@pytest.mark.parametrize(("spec", "cores"), cases())
@pytest.mark.parametrize("tokens", ["one", "few", "ragged"])
def test_gradients_agree(spec: RmsNormBackwardSpec, cores: int, tokens: str) -> None:
    # The last count gives parts of several rows, and a core more stages than there are slots.
    ragged = 1027 if spec.hidden < 1000 else 613
    check(spec, cores, {"one": 1, "few": 5, "ragged": ragged}[tokens])


def test_parts_of_several_stages_agree() -> None:
    spec = RmsNormBackwardSpec(hidden=64)
    tokens = 256 * 2 * kernel(spec, 4).lowered.choices["rows"] + 77
    check(spec, 4, tokens)


def test_wide_rows_and_static_tokens_agree() -> None:
    check(RmsNormBackwardSpec(hidden=7168, residual_grad=True, tokens=37), 28, 37)


@pytest.mark.parametrize("accumulate", [False, True])
def test_without_tokens_the_weight_still_has_a_gradient(accumulate: bool) -> None:
    outputs = check(RmsNormBackwardSpec(hidden=80, accumulate=accumulate), 28, 0)
    assert accumulate or (outputs["dweight"] == 0).all()


def test_without_tokens_and_weight_there_is_no_work() -> None:
    check(RmsNormBackwardSpec(hidden=128, weight=False), 28, 0)


def test_the_bits_do_not_depend_on_the_number_of_cores() -> None:
    spec = RmsNormBackwardSpec(hidden=144)
    first, *others = (check(spec, cores, 700) for cores in (4, 28, 32, 36))
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in ("dx", "dweight"))
        assert first["partials"].view(torch.int32).equal(other["partials"].view(torch.int32))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_integers_are_exact(dtype: str) -> None:
    # rstd is an input: with powers of two, every intermediate result is a small multiple of 1/64.
    spec = RmsNormBackwardSpec(hidden=64, dtype=dtype, residual_grad=True, accumulate=True)
    generator = torch.Generator().manual_seed(3)

    def integers(*size: int) -> torch.Tensor:
        return torch.randint(-2, 3, size, generator=generator).to(TORCH_DTYPES[dtype])

    inputs = {name: integers(530, 64) for name in ("dy", "x", "residual_grad")}
    inputs |= {"weight": integers(64), "dweight": torch.arange(64.0)}
    inputs["rstd"] = 2.0 ** torch.randint(-2, 3, (530,), generator=generator)
    check_kernel(spec, 28, inputs)


def test_what_is_not_finite_stays_in_its_row_and_columns() -> None:
    spec = RmsNormBackwardSpec(hidden=128)
    inputs = inputs_of(spec, 3)
    inputs["dy"][1, 7] = torch.nan
    outputs = check_kernel(spec, 28, inputs, tolerances(spec, inputs_of(spec, 3)))
    assert outputs["dx"][1].isnan().all()
    assert outputs["dx"][[0, 2]].isfinite().all()
    assert outputs["dweight"].isnan().nonzero().tolist() == [[7]]
