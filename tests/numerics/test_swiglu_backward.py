"""swiglu_backward on the CPU twin against torch in float64, in every schedule.

Tolerance: one rounding to the output's dtype, and 2^-20 of the largest magnitude that enters a result. A cast
is compared to the bit with a quantisation of the fp32 gradient that the plain kernel gives.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from support.cast_checks import expected_cast
from support.kernel_checks import Close, check_kernel, reference_of
from support.twin_kernels import TORCH_DTYPES, kernel

from kaas.kernel_library.families.swiglu import SwigluSpec
from kaas.kernel_library.families.swiglu_backward import SwigluBackwardSpec

ROUNDING = {"bf16": 2.0**-8, "fp32": 2.0**-24}
ARITHMETIC = 2.0**-20
DTYPES = TORCH_DTYPES | {"e4m3": torch.float8_e4m3fn}


def inputs_of(spec: SwigluBackwardSpec, rows: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(rows)

    def values(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    inputs: dict[str, Any] = {"x": (values(rows, 2 * spec.hidden) * 4).to(DTYPES[spec.dtype])}
    if spec.dtype == "e4m3":
        inputs["x_scales"] = torch.rand((rows, 2 * spec.hidden // 32), generator=generator) + 0.5
    inputs["dy"] = values(rows, spec.hidden).to(DTYPES[spec.dtype_grad])
    if spec.weights:
        inputs["weights"] = torch.rand(rows, generator=generator)
    if spec.scaling:
        inputs["scaling"] = 2.5
    if spec.experts:
        sizes = torch.randint(0, 2 * spec.token_alignment, (spec.experts,), generator=generator)
        ends, end = [], 0
        for size in sizes.tolist():
            begin = -(-end // spec.token_alignment) * spec.token_alignment
            if size % 3 and begin < rows:
                end = min(begin + size, rows)
            ends.append(end)
        inputs["expert_ends"] = torch.tensor(ends, dtype=torch.int32)
    return inputs


def tolerances(spec: SwigluBackwardSpec, inputs: dict[str, Any]) -> dict[str, Close]:
    """From the magnitudes of what is multiplied and added up."""
    x = inputs["x"].double().nan_to_num(0.0, 0.0, 0.0)
    if spec.dtype == "e4m3":
        x = x * inputs["x_scales"].double().repeat_interleave(32, 1)
    if spec.clamp is not None:
        x = x.clamp(max=spec.clamp)
    gate, up = x[:, : spec.hidden], x[:, spec.hidden :]
    sigmoid, dy = gate.sigmoid(), inputs["dy"].double().abs().nan_to_num(0.0)
    weights = inputs["weights"].double().abs()[:, None] if spec.weights else 1.0
    weights = weights * inputs.get("scaling", 1.0)
    largest = (dy * weights * sigmoid * (1 + gate.abs()) * (1 + up.abs())).flatten()
    sums = (dy * (gate * sigmoid * up).abs()).sum(1) * inputs.get("scaling", 1.0)
    some = len(x) > 0
    return {
        "dx": Close(ROUNDING[spec.dtype_out], ARITHMETIC * float(largest.max()) if some else 0.0),
        "dweights": Close(ARITHMETIC, ARITHMETIC * float(sums.max()) if some else 0.0),
        "y": Close(ROUNDING[spec.dtype_out] + ARITHMETIC, 2.0**-100),
    }


def check(spec: SwigluBackwardSpec, cores: int, rows: int) -> dict[str, torch.Tensor]:
    inputs = inputs_of(spec, rows)
    return check_kernel(spec, cores, inputs, tolerances(spec, inputs))


CASES: tuple[tuple[int, dict[str, Any]], ...] = (
    (4, {"hidden": 576}),
    (28, {"hidden": 80, "dtype": "fp32", "dtype_grad": "fp32", "dtype_out": "fp32", "weights": True}),
    (32, {"hidden": 256, "weights": True, "scaling": True, "clamp": 3.0, "recompute": True}),
    (36, {"hidden": 1008, "dtype_grad": "fp32", "experts": 9, "token_alignment": 8, "recompute": True}),
    (28, {"hidden": 96, "dtype": "e4m3", "dtype_out": "fp32", "weights": True, "clamp": 0.5}),
    (
        4,
        {
            "hidden": 144,
            "dtype": "fp32",
            "weights": True,
            "scaling": True,
            "experts": 12,
            "token_alignment": 16,
            "recompute": True,
        },
    ),
)


@pytest.mark.parametrize(
    ("cores", "fields"),
    CASES,
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else str(value),
)
@pytest.mark.parametrize("rows", ["one", "few", "ragged"])
def test_gradients_agree(cores: int, fields: dict[str, Any], rows: str) -> None:
    spec = SwigluBackwardSpec(**fields)
    # The last count gives cores more stages than there are slots, and one of them a short stage.
    plan = kernel(spec, cores).lowered.choices
    ragged = 2 * cores * plan["rows"] * (plan["stages"] + 1) + 3
    check(spec, cores, {"one": 1, "few": 5, "ragged": min(ragged, 200_000 // spec.hidden)}[rows])


def test_wide_rows_and_static_tokens_agree() -> None:
    check(SwigluBackwardSpec(hidden=7168, weights=True, tokens=21), 4, 21)


def test_no_tokens_are_no_work() -> None:
    check(SwigluBackwardSpec(hidden=128, weights=True, recompute=True), 28, 0)


CASTS: tuple[dict[str, Any], ...] = (
    {"cast": "e4m3", "hidden": 192, "dtype": "e4m3", "weights": True},
    {
        "cast": "e4m3",
        "hidden": 128,
        "round_sf": True,
        "scale_dtype": "e8m0x2",
        "col_major": True,
        "clamp": 2.0,
    },
    {"cast": "e4m3", "hidden": 128, "dtype": "e4m3", "col_major": True, "experts": 7, "token_alignment": 8},
    {"cast": "e2m1", "hidden": 2048, "round_sf": True, "scale_dtype": "e8m0x2", "weights": True},
)


@pytest.mark.parametrize("fields", CASTS, ids=lambda fields: "-".join(map(str, fields.values())))
@pytest.mark.parametrize("rows", [1, 133])
def test_a_cast_is_the_quantisation_of_the_plain_gradient(fields: dict[str, Any], rows: int) -> None:
    spec = SwigluBackwardSpec(**fields)
    rows = rows if spec.hidden < 1000 else min(rows, 30)
    changes = {
        "cast": "none",
        "round_sf": False,
        "scale_dtype": "fp32",
        "col_major": False,
        "dtype_out": "fp32",
    }
    plain_spec = msgspec.structs.replace(spec, **changes)
    inputs = inputs_of(spec, rows)
    plain = check_kernel(plain_spec, 4, inputs, tolerances(plain_spec, inputs))
    expected = plain | {"dx": plain["dx"].bfloat16()} | expected_cast(spec, plain["dx"], "dx_cast")
    check_kernel(spec, 4, inputs, expected=expected)


@pytest.mark.parametrize("ends", [[0, 0, 0], [40, 40, 40], [0, 1, 17], [8, 16, 24], [7, 15, 90]])
def test_rows_of_padding_are_zero_whatever_they_held(ends: list[int]) -> None:
    spec = SwigluBackwardSpec(hidden=128, experts=3, token_alignment=8, weights=True, recompute=True)
    inputs = inputs_of(spec, 90) | {"expert_ends": torch.tensor(ends, dtype=torch.int32)}
    close = tolerances(spec, inputs)
    padding = (reference_of(spec, inputs)["y"] == 0).all(1)
    assert padding.any() or ends[-1] == 90
    inputs["x"][padding], inputs["dy"][padding], inputs["weights"][padding] = torch.nan, torch.inf, torch.nan
    check_kernel(spec, 28, inputs, close)


def test_the_recomputed_result_has_the_bits_of_the_forward_kernel() -> None:
    spec = SwigluBackwardSpec(hidden=192, weights=True, scaling=True, clamp=2.0, recompute=True)
    inputs = inputs_of(spec, 77)
    backward = check_kernel(spec, 28, inputs, tolerances(spec, inputs))
    forward_spec = SwigluSpec(hidden=192, weights=True, scaling=True, clamp=2.0)
    taken = {name: inputs[name] for name in ("x", "weights", "scaling")}
    check_kernel(forward_spec, 28, taken, expected={"y": backward["y"]})


def test_values_at_the_edge_of_the_clamp_keep_their_gradient() -> None:
    spec = SwigluBackwardSpec(hidden=64, dtype="fp32", dtype_grad="fp32", dtype_out="fp32", clamp=1.5)
    edge = torch.tensor(1.5)
    above, below = torch.nextafter(edge, edge + 1), torch.nextafter(-edge, -edge - 1)
    x = torch.ones((4, 128))
    x[0], x[1, :64], x[2, 64:], x[3, 64:] = edge, above, above, below
    inputs = {"x": x, "dy": torch.ones((4, 64))}
    dx = check_kernel(spec, 28, inputs, tolerances(spec, inputs))["dx"]
    assert (dx != 0).view(4, 2, 64).all(-1).tolist() == [
        [True, True],
        [False, True],
        [True, False],
        [True, False],
    ]


def test_powers_of_two_are_exact_where_the_gate_is_saturated() -> None:
    # exp(-128) vanishes beside 1: the sigmoid is 1 and its slope is 0.
    spec = SwigluBackwardSpec(hidden=64, weights=True)
    up = (2.0 ** torch.arange(-32, 32)).expand(3, 64)
    x = torch.cat((torch.full((3, 64), 128.0), up), 1).bfloat16()
    dy = torch.tensor([1.0, 4.0, -0.5])[:, None].expand(3, 64).bfloat16()
    weights = torch.tensor([1.0, 0.5, -2.0])
    through = dy.float() * weights[:, None]
    expected = {
        "dx": torch.cat((through * up, through * 128), 1).bfloat16(),
        "dweights": (dy.float()[:, :1] * 128).squeeze(1) * up.double().sum(1),
    }
    close = {"dx": Close(), "dweights": Close(ARITHMETIC)}
    check_kernel(spec, 28, {"x": x, "dy": dy, "weights": weights}, close, expected=expected)


def test_what_is_not_finite_stays_where_it_is() -> None:
    spec = SwigluBackwardSpec(hidden=64, dtype="fp32", dtype_grad="fp32", dtype_out="fp32", clamp=3.0)
    x, dy = torch.ones((2, 128)), torch.ones((2, 64))
    x[0, 3], x[0, 4], x[0, 64 + 5], dy[0, 6] = torch.nan, torch.inf, torch.inf, torch.nan
    inputs = {"x": x, "dy": dy}
    dx = check_kernel(spec, 28, inputs, tolerances(spec, inputs))["dx"]
    assert dx.isnan().nonzero().tolist() == [[0, 3], [0, 6], [0, 64 + 3], [0, 64 + 6]]
    assert (dx[0, 4], dx[0, 64 + 5]) == (0, 0)
