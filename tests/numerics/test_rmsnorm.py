"""rmsnorm on the CPU twin against torch in float64, in eager order and under adversarial schedules.

Tolerance: one rounding to the dtype, and 2^-20 of the value for the fp32 arithmetic before it. A cast is
compared to the bit with a quantisation of the y that the plain kernel gives.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
import torch
from support.cast_checks import expected_cast
from support.kernel_checks import EXACT, Close, check_kernel
from support.twin_kernels import TORCH_DTYPES, aligned, kernel

from kaas.kernel_library.families.rmsnorm import RmsNormSpec

DTYPES = ("bf16", "fp16", "fp32")
HALF_ULP = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}
LEAST_NORMAL = {"bf16": 2.0**-126, "fp16": 2.0**-14, "fp32": 2.0**-126}
ARITHMETIC = 2.0**-20


def cases() -> list[Any]:
    """hidden x dtype with two of the option sets, and core counts in turn."""
    options: tuple[dict[str, Any], ...] = (
        {"weight": True},
        {"residual": True, "weight": False, "rstd": True},
        {"residual": True, "weight": True, "out_scale": 0.3},
        {"weight": False, "out_scale": -2.0, "rstd": True},
    )
    found = []
    for index, (hidden, dtype) in enumerate(itertools.product((576, 1008, 7168), DTYPES)):
        fields, cores = options[index % 4], (28, 32, 36)[index % 3]
        spec = RmsNormSpec(hidden=hidden, dtype=dtype, **fields)
        found.append(pytest.param(spec, cores, id="-".join([str(hidden), dtype, *fields, f"{cores}cores"])))
    return found


def inputs_of(spec: RmsNormSpec, tokens: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)

    def values(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(TORCH_DTYPES[spec.dtype])

    inputs = {"x": values(tokens, spec.hidden)}
    if spec.residual:
        inputs["residual"] = values(tokens, spec.hidden)
    if spec.weight:
        inputs["weight"] = values(spec.hidden)
    return inputs


def tolerances(spec: RmsNormSpec) -> dict[str, Any]:
    def rounding(dtype: str) -> Close:
        return Close(HALF_ULP[dtype] + ARITHMETIC, LEAST_NORMAL[dtype] * HALF_ULP[dtype] * 2)

    return {
        "y": rounding(spec.dtype),
        "y_bf16": rounding("bf16"),
        "y_scales": EXACT,
        "rstd": Close(ARITHMETIC),
        "residual": EXACT,
    }


def check(spec: RmsNormSpec, cores: int, tokens: int) -> dict[str, torch.Tensor]:
    return check_kernel(spec, cores, inputs_of(spec, tokens), tolerances(spec))


@pytest.mark.parametrize(("spec", "cores"), cases())
@pytest.mark.parametrize("tokens", ["one", "few", "ragged"])
def test_rows_are_normalised(spec: RmsNormSpec, cores: int, tokens: str) -> None:
    # The last count gives every vector core more stages than it has slots, and one of them a short stage.
    rows, stages = (kernel(spec, cores).lowered.choices[name] for name in ("rows", "stages"))
    ragged = min(2 * cores * rows * (stages + 1) + 3, 1_000_000 // spec.hidden)
    check(spec, cores, {"one": 1, "few": 5, "ragged": ragged}[tokens])


@pytest.mark.parametrize("tokens", [1, 56, 300])
def test_static_tokens_agree(tokens: int) -> None:
    check(RmsNormSpec(hidden=128, tokens=tokens, rstd=True), 28, tokens)


@pytest.mark.parametrize(
    "spec",
    [RmsNormSpec(hidden=64), RmsNormSpec(hidden=80), RmsNormSpec(hidden=32768, residual=True)],
    ids=["64", "80", "32768"],
)
def test_narrowest_and_widest_rows_agree(spec: RmsNormSpec) -> None:
    check(spec, 4, 30)


CASTS: tuple[dict[str, Any], ...] = (
    {"cast": "e4m3", "hidden": 576, "bf16_output": True, "residual": True, "rstd": True},
    {"cast": "e4m3", "hidden": 96, "round_sf": True, "scale_dtype": "e8m0x2", "col_major": True},
    {"cast": "e4m3", "hidden": 96, "dtype": "fp32", "col_major": True, "bf16_output": True, "out_scale": 3.0},
    {"cast": "e2m1", "hidden": 7168, "round_sf": True, "scale_dtype": "e8m0x2", "weight": False},
    {"cast": "e2m1", "hidden": 128, "dtype": "fp32", "round_sf": True, "residual": True},
)


@pytest.mark.parametrize("fields", CASTS, ids=lambda fields: "-".join(map(str, fields.values())))
@pytest.mark.parametrize("tokens", [1, 211])
def test_a_cast_is_the_quantisation_of_the_plain_result(fields: dict[str, Any], tokens: int) -> None:
    spec = RmsNormSpec(**fields)
    tokens = tokens if spec.hidden < 1000 else min(tokens, 40)
    changes = {
        "cast": "none",
        "round_sf": False,
        "scale_dtype": "fp32",
        "col_major": False,
        "bf16_output": False,
    }
    plain_spec = msgspec.structs.replace(spec, **changes)
    inputs = inputs_of(spec, tokens)
    plain = check_kernel(plain_spec, 4, inputs, tolerances(plain_spec))
    expected = expected_cast(spec, plain["y"], "y") | {
        name: plain[name] for name in ("residual", "rstd") if name in plain
    }
    if spec.bf16_output:
        expected["y_bf16"] = plain["y"].bfloat16()
    check_kernel(spec, 4, inputs, expected=expected)


def test_rows_of_one_magnitude_are_exact() -> None:
    # The mean of squares is a power of four, and so every factor is a power of two.
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0]).repeat(5, 32)
    x = (signs * torch.tensor([1.0, 2.0, 0.25, 2.0**40, 2.0**-40])[:, None]).bfloat16()
    weight = torch.full((128,), 4.0, dtype=torch.bfloat16)
    spec = RmsNormSpec(hidden=128, eps=0.0, out_scale=0.5, rstd=True)
    expected = {"y": 2 * signs.bfloat16(), "rstd": 1 / x[:, 0].float().abs()}
    check_kernel(spec, 28, {"x": x, "weight": weight}, expected=expected)


def test_no_tokens_are_no_work() -> None:
    check(RmsNormSpec(hidden=128, weight=False, rstd=True), 28, 0)


def test_infinities_and_nans_stay_in_their_row() -> None:
    x = aligned(torch.ones((3, 128), dtype=torch.bfloat16))
    x[0, 3], x[1, 5] = torch.nan, torch.inf
    y = aligned(torch.zeros_like(x))
    kernel(RmsNormSpec(hidden=128, weight=False), 28).launch(x, y)
    assert torch.isnan(y[0]).all()
    assert torch.isnan(y[1, 5])
    assert (y[1].nan_to_num(0.0) == 0).all()
    assert (y[2] == 1).all()
