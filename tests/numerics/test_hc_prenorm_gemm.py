"""hc_prenorm_gemm on the CPU twin against products and sums of squares in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import EXACT, CalcDiff, check_kernel
from support.twin_kernels import aligned, kernel

from kaas.kernel_library.families.hc_prenorm_gemm import HcPrenormGemmSpec

CORES = (4, 28, 32, 36)


def inputs(tokens: int, spec: HcPrenormGemmSpec, *, integers: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    shape = (tokens, spec.hidden), (spec.columns, spec.hidden)
    if integers:
        x, weight = (torch.randint(-2, 3, size, generator=generator).float() for size in shape)
    else:
        x, weight = (torch.randn(size, generator=generator) for size in shape)
    return {"x": x.bfloat16(), "weight": weight}


@pytest.mark.parametrize(
    ("fields", "tokens", "cores"),
    [
        ({"hidden": 1280}, 333, 4),
        ({"hidden": 1280, "hf32": False, "columns": 64}, 140, 4),
        ({"hidden": 512, "columns": 8, "tokens": 150}, 150, 4),
        ({"hidden": 2048}, 1, 36),
        ({"hidden": 256, "tokens": 33}, 33, 28),
    ],
    ids=str,
)
def test_mixes_and_sums_of_squares_agree(fields: dict[str, Any], tokens: int, cores: int) -> None:
    spec = HcPrenormGemmSpec(**fields)
    check_kernel(spec, cores, inputs(tokens, spec, integers=True), EXACT)
    limit = 1e-8 if spec.hf32 else 1e-12
    compare = {"mixes": CalcDiff(limit), "square_sum": CalcDiff(1e-12)}
    check_kernel(spec, cores, inputs(tokens, spec, integers=False), compare)


def test_no_tokens_are_no_work() -> None:
    spec = HcPrenormGemmSpec(hidden=1280)
    actual = check_kernel(spec, 4, inputs(0, spec, integers=True))
    assert actual["mixes"].shape == (0, 24)


def test_a_value_that_is_no_number_stays_in_its_row() -> None:
    spec = HcPrenormGemmSpec(hidden=1280)
    given = inputs(70, spec, integers=True)
    given["x"][11, 1000] = torch.nan
    given["x"][40, 3] = torch.inf
    given["weight"][:, 3] = 1.0
    actual = check_kernel(spec, 4, given)
    assert actual["mixes"].isnan().sum() == spec.columns
    assert actual["square_sum"][40].isinf()


def test_sums_do_not_depend_on_the_core_count() -> None:
    spec = HcPrenormGemmSpec(hidden=1280)
    given = inputs(150, spec, integers=False)
    results = []
    for cores in CORES:
        mixes, sums = aligned(torch.empty(150, 24)), aligned(torch.empty(150))
        kernel(spec, cores).launch(aligned(given["x"]), aligned(given["weight"]), mixes, sums)
        results.append(torch.cat((mixes, sums[:, None]), 1))
    assert all(torch.equal(results[0], other) for other in results[1:])
