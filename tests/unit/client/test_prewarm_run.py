"""A pre-warm as it goes: order, counts, the time that is left, the record of failures, what is shown."""

import json
from collections.abc import Iterator

import pytest

from kaas.client.compile_plan import CostTable, cost_table
from kaas.client.manifest import Entry
from kaas.client.prewarm_progress import show
from kaas.client.prewarm_run import PrewarmRun, Task, TaskEnd, failures_record, in_order
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.proto.compile_cost import FamilyCost
from kaas.proto.errors import CompileFailed

COSTS: CostTable = cost_table(
    {"gemm": FamilyCost(peak_bytes=1, least_bytes=1, seconds=10.0, compiles=1, cpu_seconds=10.0)}
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def tasks(count: int) -> list[Task]:
    return [Task(i, Entry(GemmSpec(n=64 * (i + 1), k=64), "", line=i + 3)) for i in range(count)]


def failed(task: Task) -> TaskEnd:
    return TaskEnd(task, error=CompileFailed("no", stage="lower", deterministic=True).to_record(), where="n7")


def test_what_matters_most_comes_first_and_equals_stay_in_order() -> None:
    weights = [1.0, 5.0, 1.0, 7.0, 5.0]
    given = [
        task._replace(entry=task.entry._replace(weight=w)) for task, w in zip(tasks(5), weights, strict=True)
    ]
    assert [task.position for task in in_order(given)] == [3, 1, 4, 0, 2]


def test_hits_say_nothing_about_the_time_that_is_left() -> None:
    clock = Clock()
    run = PrewarmRun(tasks(4), COSTS, clock)
    run.note(TaskEnd(run.tasks[0], "k", "hit"))
    assert run.eta_s() is None
    clock.now += 20
    run.note(TaskEnd(run.tasks[1], "k", "compiled"))
    assert run.eta_s() == pytest.approx(40.0)  # one of them took 20 s
    run.note(failed(run.tasks[2]))
    assert run.eta_s() == pytest.approx(20.0)
    run.note(TaskEnd(run.tasks[3], "k", "compiled"))
    assert run.eta_s() == 0.0
    assert dict(run.outcomes) == {"hit": 1, "compiled": 2}


def test_the_record_of_failures_names_spec_line_and_reason() -> None:
    run = PrewarmRun(tasks(3), COSTS)
    run.note(failed(run.tasks[1]))
    record = failures_record(run, {"shard": "0/2"})
    assert (record["shard"], record["total"], record["failed"], record["not_reached"]) == ("0/2", 3, 1, 2)
    only = record["failures"][0]
    assert (only["position"], only["line"], only["spec"]["n"], only["where"]) == (1, 4, 128, "n7")
    assert only["error"]["code"] == "compile_failed"


def test_one_failure_is_told_and_the_rest_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    run = PrewarmRun(tasks(3), COSTS)

    def ends() -> Iterator[TaskEnd]:
        yield failed(run.tasks[0])
        yield TaskEnd(run.tasks[1], "k1", "compiled", 2.0, where="n8")
        yield TaskEnd(run.tasks[2], "k2", "hit", 0.0)

    assert show(run, ends(), as_json=True, about={"shard": "1/2"}) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["done"], line["ready"], line["failed"]) for line in lines] == [
        (1, 0, 1),
        (2, 1, 1),
        (3, 2, 1),
        (3, 2, 1),
    ]
    assert lines[0]["error"]["code"] == "compile_failed"
    assert lines[1]["where"] == "n8"
    assert all(line["shard"] == "1/2" for line in lines)
    assert lines[-1]["finished"] is True
    assert lines[-1]["outcomes"] == {"compiled": 1, "hit": 1}


def test_nothing_to_do_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(PrewarmRun([], COSTS), iter(()), as_json=False) == 0
    assert capsys.readouterr().out == "0 of 0 kernels are warm, 0 failed\n"
