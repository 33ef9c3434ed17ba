"""Row plans: what is chosen fits UB and spreads few rows; what is given is kept or refused."""

from __future__ import annotations

import pytest

from kaas.kernel_library.targets import target_named
from kaas.kernel_library.vector.row_plan import RowTile, plan_rows
from kaas.proto.errors import DoesNotFit, InvalidSpec

TARGET = target_named("Ascend950PR_9579")


@pytest.mark.parametrize("row_bytes", [64, 1024, 14336, 60000, TARGET.ub_bytes])
def test_a_plan_fits_and_its_report_ranks_the_alternatives(row_bytes: int) -> None:
    plan = plan_rows(TARGET, row_bytes=row_bytes)
    assert plan.rows * plan.stages * row_bytes <= TARGET.ub_bytes
    costs = [plan.why["modelled_cycles"], *(one["modelled_cycles"] for one in plan.why["runners_up"])]
    assert costs == sorted(costs)
    assert plan.stages == 1 or row_bytes * 2 <= TARGET.ub_bytes


def test_few_rows_do_not_pile_up_on_few_cores() -> None:
    assert plan_rows(TARGET, row_bytes=1024, rows=56).rows == 1
    assert plan_rows(TARGET, row_bytes=1024, rows=100_000).rows > 8


def test_a_given_tile_is_kept_or_refused_with_the_excess() -> None:
    plan = plan_rows(TARGET, row_bytes=1000, given=RowTile(rows=5, stages=3))
    assert (plan.rows, plan.stages, plan.why["reason"]) == (5, 3, "given by the spec")
    with pytest.raises(DoesNotFit) as refusal:
        plan_rows(TARGET, row_bytes=60000, given=RowTile(rows=5, stages=1))
    assert refusal.value.details["field"] == "tile"
    assert refusal.value.details["excess_bytes"] == 5 * 60000 - TARGET.ub_bytes
    with pytest.raises(InvalidSpec, match=r"tile\.rows"):
        RowTile(rows=0, stages=1)
