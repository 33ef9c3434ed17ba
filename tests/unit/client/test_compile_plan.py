"""What compiles will cost: learned figures first, estimates scaled to them, files that are refused."""

import json
from pathlib import Path

import pytest

from kaas.client.compile_plan import CostTable, cost_table, costs_record, learned_costs, read_costs
from kaas.kernel_library.compile_estimates import COMPILE_SECONDS, TYPICAL_SECONDS
from kaas.kernel_library.registry import builtin_names
from kaas.proto.compile_cost import COSTS_FILE, FamilyCost
from kaas.proto.errors import InvalidRequest


def cost(seconds: float, cpu_seconds: float = 0.0) -> FamilyCost:
    return FamilyCost(
        peak_bytes=5 << 20, least_bytes=1 << 20, seconds=seconds, compiles=3, cpu_seconds=cpu_seconds
    )


def test_every_estimate_is_of_a_family_that_exists() -> None:
    assert set(COMPILE_SECONDS) <= set(builtin_names())
    assert min(COMPILE_SECONDS.values()) > 0


def test_without_history_estimates_decide() -> None:
    table = CostTable()
    assert table.seconds("gemm") == COMPILE_SECONDS["gemm"]
    assert table.seconds("of another package") == TYPICAL_SECONDS
    assert not table.is_learned("gemm")


def test_learned_costs_win_and_scale_the_estimates_of_other_families() -> None:
    table = cost_table({"gemm": cost(10 * COMPILE_SECONDS["gemm"], cpu_seconds=4.0)})
    assert table.seconds("gemm") == 10 * COMPILE_SECONDS["gemm"]
    assert table.seconds("rmsnorm") == pytest.approx(10 * COMPILE_SECONDS["rmsnorm"])
    assert table.cpu_seconds("gemm") == 4.0
    assert table.peak_bytes("gemm") == 5 << 20


def test_processor_time_that_was_not_measured_is_wall_time() -> None:
    assert cost_table({"gemm": cost(3.0)}).cpu_seconds("gemm") == 3.0


def test_a_stores_costs_survive_export_and_reading(tmp_path: Path) -> None:
    stored = {
        "gemm": {"peak_bytes": 9, "least_bytes": 7, "seconds": 1.5, "compiles": 2}
    }  # without cpu_seconds
    (tmp_path / COSTS_FILE).write_text(json.dumps(stored))
    table = learned_costs(tmp_path)
    assert table.seconds("gemm") == 1.5
    exported = tmp_path / "costs.json"
    exported.write_text(json.dumps(costs_record(table)))
    assert read_costs(exported) == table


@pytest.mark.parametrize("content", [None, "", "[]", '{"gemm": 3}'])
def test_a_store_whose_costs_cannot_be_read_gives_estimates(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / COSTS_FILE).write_text(content)
    assert learned_costs(tmp_path) == CostTable()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"version": 2, "families": {}}',
        '{"version": 1, "families": {"gemm": {}}}',
        '{"version": 1, "families": {"gemm": {"peak_bytes":1,"least_bytes":1,"seconds":-1,"compiles":1}}}',
    ],
)
def test_a_file_that_holds_no_costs_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(InvalidRequest) as refused:
        read_costs(path)
    assert refused.value.details["field"] == "costs"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        read_costs(tmp_path / "none.json")
