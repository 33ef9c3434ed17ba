"""swiglu on the CPU twin against torch in float64, in every schedule.

Tolerance: one rounding to the output's dtype, and 2^-20 of the value for the fp32 arithmetic before it. A
cast is compared to the bit with a quantisation of the fp32 result that the plain kernel gives.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import pytest
import torch
from support.cast_checks import expected_cast
from support.kernel_checks import Close, check_kernel
from support.twin_kernels import TORCH_DTYPES, aligned, kernel

from kaas.kernel_library.families.swiglu import SwigluSpec
from kaas.kernel_library.references.cast_output import cast_output
from kaas.kernel_library.references.expert_rows import is_token

ROUNDING = {"bf16": 2.0**-8, "fp32": 2.0**-24}
# What an exponential beyond fp32 flushes to zero.
FLUSHED = 2.0**-100


def close_to(spec: SwigluSpec) -> dict[str, Any]:
    close = Close(relative=ROUNDING[spec.dtype_out] + 2.0**-20, absolute=FLUSHED)
    return {"y": close, "clamped": Close()}


def inputs_of(spec: SwigluSpec, rows: int, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, 2 * spec.hidden), generator=generator) * 5
    inputs: dict[str, Any] = {"x": x.to(TORCH_DTYPES[spec.dtype])}
    if spec.weights:
        inputs["weights"] = torch.rand(rows, generator=generator)
    if spec.scaling:
        inputs["scaling"] = 2.5
    if spec.experts:
        inputs["expert_ends"] = expert_ends(spec, rows, generator)
    if spec.count_clamped:
        inputs["clamped"] = torch.tensor([5, 0, 2**40, -7])
    return inputs


def expert_ends(spec: SwigluSpec, rows: int, generator: torch.Generator) -> torch.Tensor:
    """Ends of experts of all sizes, empty ones included; the last expert may end before the last row."""
    ends, end = [], 0
    for size in torch.randint(0, 3 * spec.token_alignment, (spec.experts,), generator=generator).tolist():
        begin = -(-end // spec.token_alignment) * spec.token_alignment
        if size % 3 and begin < rows:
            end = min(begin + size, rows)
        ends.append(end)
    return torch.tensor(ends, dtype=torch.int32)


def check(spec: SwigluSpec, cores: int, rows: int) -> dict[str, torch.Tensor]:
    return check_kernel(spec, cores, inputs_of(spec, rows), close_to(spec))


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"weights": True, "clamp": 7.0},
    {"weights": True, "scaling": True, "experts": 12, "token_alignment": 8},
    {"clamp": 4.0, "count_clamped": True},
    {"weights": True, "clamp": 0.1, "count_clamped": True, "experts": 9, "token_alignment": 48},
)


def cases() -> list[Any]:
    """Every option with bf16 and with another pair of dtypes; hidden extents and core counts in turn."""
    found = []
    others = itertools.cycle([("fp32", "fp32"), ("fp32", "bf16"), ("bf16", "fp32")])
    for index, options in enumerate(OPTIONS):
        for turn, (dtype, dtype_out) in enumerate((("bf16", "bf16"), next(others))):
            hidden, cores = (80, 576, 256, 1008)[(2 * index + turn) % 4], (4, 28, 32, 36)[(index + turn) % 4]
            spec = SwigluSpec(hidden=hidden, dtype=dtype, dtype_out=dtype_out, **options)
            name = "-".join([str(hidden), dtype, dtype_out, *options, f"{cores}cores"])
            found.append(pytest.param(spec, cores, id=name))
    return found


@pytest.mark.parametrize(("spec", "cores"), cases())
@pytest.mark.parametrize("rows", ["one", "few", "ragged"])
def test_rows_are_activated(spec: SwigluSpec, cores: int, rows: str) -> None:
    # The last count gives cores more stages than there are slots, and one of them a short stage.
    plan = kernel(spec, cores).lowered.choices
    ragged = 2 * cores * plan["rows"] * (plan["stages"] + 1) + 3
    check(spec, cores, {"one": 1, "few": 5, "ragged": min(ragged, 500_000 // spec.hidden)}[rows])


CASTS: tuple[dict[str, Any], ...] = (
    {"cast": "e4m3", "hidden": 576},
    {
        "cast": "e4m3",
        "hidden": 96,
        "round_sf": True,
        "scale_dtype": "e8m0x2",
        "col_major": True,
        "weights": True,
    },
    {"cast": "e4m3", "hidden": 96, "dtype": "fp32", "col_major": True, "experts": 7, "token_alignment": 16},
    {
        "cast": "e2m1",
        "hidden": 512,
        "round_sf": True,
        "scale_dtype": "e8m0x2",
        "clamp": 3.0,
        "count_clamped": True,
    },
    {"cast": "e2m1", "hidden": 128, "round_sf": True, "dtype": "fp32"},
    {
        "cast": "e4m3",
        "hidden": 7168,
        "round_sf": True,
        "scale_dtype": "e8m0x2",
        "weights": True,
        "scaling": True,
    },
)


@pytest.mark.parametrize("fields", CASTS, ids=lambda fields: "-".join(map(str, fields.values())))
@pytest.mark.parametrize("rows", [1, 211])
def test_a_cast_is_the_quantisation_of_the_plain_result(fields: dict[str, Any], rows: int) -> None:
    spec = SwigluSpec(**fields)
    rows = rows if spec.hidden < 1000 else min(rows, 40)
    changes = {
        "cast": "none",
        "round_sf": False,
        "scale_dtype": "fp32",
        "col_major": False,
        "dtype_out": "fp32",
    }
    plain_spec = msgspec.structs.replace(spec, **changes)
    inputs = inputs_of(spec, rows)
    plain = check_kernel(plain_spec, 4, inputs, close_to(plain_spec))
    written = is_token(rows, inputs["expert_ends"], spec.token_alignment) if spec.experts else None
    expected = expected_cast(spec, plain["y"], "y", written)
    if spec.count_clamped:
        expected["clamped"] = plain["clamped"]
    check_kernel(spec, 4, inputs, expected=expected)


def test_a_block_that_is_not_finite_dequantises_to_nan_and_spoils_no_other() -> None:
    spec = SwigluSpec(hidden=128, cast="e4m3", round_sf=True)
    x = torch.ones((2, 256), dtype=torch.bfloat16)
    x[0, 40], x[1, 128] = torch.nan, torch.inf
    inputs = {"x": x}
    plain = torch.full((2, 128), 1 / (1 + math.exp(-1)))
    values, scales = cast_output(spec, plain)
    y, y_scales = aligned(torch.zeros_like(values)), aligned(torch.zeros_like(scales))
    kernel(spec, 4).launch(aligned(inputs["x"]), y, y_scales)
    bad = torch.tensor([[False, True, False, False], [True, False, False, False]]).repeat_interleave(32, 1)
    wide = y.double() * y_scales.double().repeat_interleave(32, 1)
    assert wide[bad].isnan().all()
    assert torch.equal(y.view(torch.uint8)[~bad], values.view(torch.uint8)[~bad])


def test_wide_rows_and_static_tokens_agree() -> None:
    check(SwigluSpec(hidden=7168, weights=True, experts=2, tokens=200), 4, 200)
    check(SwigluSpec(hidden=16384, dtype="fp32", dtype_out="fp32", tokens=21), 4, 21)


def test_no_tokens_are_no_work() -> None:
    check(SwigluSpec(hidden=128), 28, 0)
    check(SwigluSpec(hidden=128, clamp=1.0, count_clamped=True), 28, 0)


@pytest.mark.parametrize("ends", [[0, 0, 0], [40, 40, 40], [0, 1, 17], [8, 16, 24], [7, 15, 90]])
def test_rows_of_padding_are_neither_read_nor_written(ends: list[int]) -> None:
    spec = SwigluSpec(hidden=128, experts=3, token_alignment=8, weights=True, dtype_out="fp32")
    inputs = inputs_of(spec, 90) | {"expert_ends": torch.tensor(ends, dtype=torch.int32)}
    check_kernel(spec, 28, inputs, close_to(spec))


def test_values_at_the_edge_of_the_clamp_are_not_cut_off() -> None:
    spec = SwigluSpec(hidden=64, dtype="fp32", dtype_out="fp32", clamp=1.5, count_clamped=True)
    edge = torch.tensor(1.5)
    above, below = torch.nextafter(edge, edge + 1), torch.nextafter(-edge, -edge - 1)
    x = torch.zeros((3, 128))
    x[0], x[1, :64], x[1, 64:], x[2] = edge, above, above, below
    inputs = {"x": x, "clamped": torch.zeros(4, dtype=torch.int64)}
    outputs = check_kernel(spec, 28, inputs, close_to(spec))
    assert outputs["clamped"].tolist() == [64, 64, 64, 192]


def test_powers_of_two_are_exact_where_the_gate_is_saturated() -> None:
    # exp(-128) vanishes beside 1, so that silu(128) is 128.
    spec = SwigluSpec(hidden=64, weights=True)
    up = 2.0 ** torch.arange(-32, 32)
    x = torch.cat((torch.full((5, 64), 128.0), up.expand(5, 64)), dim=1).bfloat16()
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0, -1.0])
    expected = (128 * up * weights[:, None]).bfloat16()
    check_kernel(spec, 28, {"x": x, "weights": weights}, expected={"y": expected})


def test_infinities_and_nans_stay_where_they_are() -> None:
    inf, nan = torch.inf, torch.nan
    spec = SwigluSpec(hidden=64, dtype="fp32", dtype_out="fp32")
    x = torch.ones((2, 128))
    x[0, :6] = torch.tensor([inf, -inf, nan, 1.0, 1.0, -200.0])
    x[0, 64:70] = torch.tensor([2.0, 2.0, 2.0, nan, -inf, 3.0])
    outputs = check_kernel(spec, 28, {"x": x}, close_to(spec))
    y = outputs["y"]
    assert (y[0, 0], y[0, 4], y[0, 5]) == (inf, -inf, 0)
    assert y[0, 1:4].isnan().all()
    assert y[0, 6:].isfinite().all()
    assert y[1].isfinite().all()
    clamped = SwigluSpec(hidden=64, dtype="fp32", dtype_out="fp32", clamp=3.0)
    y = check_kernel(clamped, 28, {"x": x}, close_to(clamped))["y"]
    assert y[0, [0, 4]].isfinite().all()
    assert y[0, 2:4].isnan().all()
