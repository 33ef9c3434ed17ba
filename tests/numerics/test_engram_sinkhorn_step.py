"""engram_sinkhorn_step on the CPU twin against float64, in every schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import Close, check_kernel

from kaas.kernel_library.families.engram_sinkhorn_step import EngramSinkhornStepSpec
from kaas.kernel_library.vector.row_plan import RowTile

MANY_STAGES = EngramSinkhornStepSpec(head_dim=192, partials=11, tile=RowTile(rows=3, stages=2))
PLAIN = EngramSinkhornStepSpec(head_dim=1024, eps=1e-3)
CLOSE = Close(relative=2**-18, absolute=1e-36)


def inputs_of(columns: int, rows: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(columns + rows)
    return {
        "matrix": torch.randn((rows, columns), generator=generator),
        "row_scale": torch.rand(rows, generator=generator) + 0.01,
        "col_scale": torch.rand(columns, generator=generator) + 0.1,
    }


@pytest.mark.parametrize(
    ("spec", "cores", "rows"),
    [
        pytest.param(MANY_STAGES, 4, 205, id="many stages and parts"),
        pytest.param(MANY_STAGES, 4, 1, id="one row"),
        pytest.param(MANY_STAGES, 4, 11, id="a row for each part"),
        pytest.param(PLAIN, 28, 130, id="parts without rows"),
        pytest.param(EngramSinkhornStepSpec(head_dim=8192, partials=3, rows=20), 36, 20, id="wide rows"),
    ],
)
def test_a_step_normalises_rows_and_sums_their_squares(
    spec: EngramSinkhornStepSpec, cores: int, rows: int
) -> None:
    check_kernel(spec, cores, inputs_of(spec.head_dim, rows), CLOSE)


def test_powers_of_two_are_exact() -> None:
    spec = EngramSinkhornStepSpec(head_dim=256, eps=0.0, partials=3)
    inputs = inputs_of(256, 40)
    inputs["matrix"] = inputs["matrix"].sign() * 2.0 ** torch.arange(-20, 20).unsqueeze(1)
    inputs["row_scale"], inputs["col_scale"] = torch.full((40,), 4.0), torch.full((256,), 0.5)
    found = check_kernel(spec, 4, inputs)
    assert found["col_sumsq_partial"].sum() == 40


def test_no_rows_leave_sums_of_zero() -> None:
    found = check_kernel(MANY_STAGES, 4, inputs_of(192, 0), CLOSE)
    assert (found["col_sumsq_partial"] == 0).all()


def test_rows_of_zeros_add_nothing_and_a_nan_stays_in_its_part() -> None:
    inputs = inputs_of(192, 44)
    inputs["matrix"][3] = 0.0
    inputs["matrix"][9, 5] = torch.nan
    found = check_kernel(MANY_STAGES, 4, inputs, CLOSE)
    assert found["row_norm"].isnan().nonzero().flatten().tolist() == [9]
    assert found["col_sumsq_partial"].isnan().any(1).nonzero().flatten().tolist() == [2]


def test_sums_do_not_depend_on_the_core_count() -> None:
    inputs = inputs_of(1024, 300)
    few, many = (check_kernel(PLAIN, cores, inputs, CLOSE) for cores in (4, 28))
    assert all(few[name].equal(many[name]) for name in few)
