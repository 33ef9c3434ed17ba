"""``python -m benchmarks quick``: a ratio that is worse in every look fails it, one bad look does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from benchmarks import __main__ as command
from benchmarks import results
from benchmarks.outcome import Check, Outcome, Row, row_record

RECORDED = 2.0
FINE, WORSE = 2.2, 3.0


def row(first: float, second: float) -> Row:
    checks = tuple(
        Check(what=what, value=value, unit="x", direction="<=", target=10, ratio=True)
        for what, value in (("first", first), ("second", second))
    )
    return Row(number="3", measured="a hit", against="a file", checks=checks)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Exit status of ``quick`` when its looks find these values; ``left`` of them are not asked for.

    Two runs are recorded, each with one of two ratios better than :data:`RECORDED`.
    """

    def judged(*found: tuple[float, float], left: int = 0) -> int:
        recorded: dict[str, Any] = {name: {"rows": [], "runs": []} for name in command.QUICK}
        recorded["hits"] = {
            "rows": [row_record(row(RECORDED - 1, RECORDED))],
            "runs": [{"ratios": Outcome(rows=[row(RECORDED, RECORDED - 1)], series={}).ratios()}],
        }
        waiting = list(found)

        def measured(name: str, _effort: object) -> Outcome:
            return Outcome(rows=[row(*waiting.pop(0))] if name == "hits" else [], series={})

        monkeypatch.setattr(results, "load", lambda: recorded)
        monkeypatch.setattr(command, "_measured", measured)
        status = command.main(["quick"])
        assert len(waiting) == left
        return status

    return judged


def test_one_look_is_enough_when_nothing_is_worse(looks, capsys):
    assert looks((FINE, FINE), (WORSE, WORSE), left=1) == 0
    assert "no ratio is worse" in capsys.readouterr().out


def test_a_ratio_that_is_worse_every_time_fails(looks, capsys):
    assert looks((WORSE, FINE), (WORSE, FINE), (WORSE, WORSE)) == 1
    assert capsys.readouterr().out.rstrip().endswith("row 3: first is 3 x, recorded 2: 1.50 times worse")


def test_another_ratio_in_each_look_is_the_machine(looks):
    assert looks((WORSE, FINE), (FINE, WORSE), left=0) == 0


def test_a_ratio_that_is_fine_in_the_last_look_passes(looks):
    assert looks((WORSE, WORSE), (WORSE, FINE), (FINE, WORSE)) == 0
