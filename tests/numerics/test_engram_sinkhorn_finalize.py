"""engram_sinkhorn_finalize on the CPU twin against float64, in every schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import Close, check_kernel

from kaas.kernel_library.families.engram_sinkhorn_finalize import EngramSinkhornFinalizeSpec
from kaas.kernel_library.vector.row_plan import RowTile

MANY_STAGES = EngramSinkhornFinalizeSpec(head_dim=192, tile=RowTile(rows=3, stages=2))
PLAIN = EngramSinkhornFinalizeSpec(head_dim=1024, eps=1e-3)
CLOSE = Close(relative=2**-18, absolute=1e-36)


def inputs_of(columns: int, rows: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(columns + rows)
    return {
        "matrix": torch.randn((rows, columns), generator=generator),
        "row_scale": torch.rand(rows, generator=generator) * 3,
        "col_scale": torch.rand(columns, generator=generator) + 0.1,
        "alpha": 0.7,
    }


@pytest.mark.parametrize(
    ("spec", "cores", "rows"),
    [
        pytest.param(MANY_STAGES, 4, 203, id="many stages"),
        pytest.param(MANY_STAGES, 4, 1, id="one row"),
        pytest.param(PLAIN, 28, 130, id="ragged"),
        pytest.param(EngramSinkhornFinalizeSpec(head_dim=16384, rows=9), 4, 9, id="wide rows"),
    ],
)
def test_rows_have_the_norm_that_was_asked_for(
    spec: EngramSinkhornFinalizeSpec, cores: int, rows: int
) -> None:
    check_kernel(spec, cores, inputs_of(spec.head_dim, rows), CLOSE)


def test_powers_of_two_are_exact() -> None:
    spec = EngramSinkhornFinalizeSpec(head_dim=256, eps=0.0)
    inputs = inputs_of(256, 40)
    inputs["matrix"] = inputs["matrix"].sign() * 2.0 ** torch.arange(-20, 20).unsqueeze(1)
    inputs["row_scale"], inputs["col_scale"] = torch.full((40,), 4.0), torch.full((256,), 0.5)
    found = check_kernel(spec, 4, inputs | {"alpha": 16.0})
    assert (found["out"].abs() == 1).all()


def test_rows_of_zeros_stay_zero_and_a_nan_stays_in_its_row() -> None:
    inputs = inputs_of(192, 20)
    inputs["matrix"][4] = 0.0
    inputs["matrix"][9, 5] = torch.nan
    found = check_kernel(MANY_STAGES, 4, inputs, CLOSE)["out"]
    assert (found[4] == 0).all()
    assert found.isnan().any(1).nonzero().flatten().tolist() == [9]


def test_results_do_not_depend_on_the_core_count() -> None:
    inputs = inputs_of(1024, 77)
    few, many = (check_kernel(PLAIN, cores, inputs, CLOSE)["out"] for cores in (4, 36))
    assert few.equal(many)
