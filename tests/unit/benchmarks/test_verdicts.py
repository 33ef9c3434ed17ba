"""Verdicts, regressions and statistics of the benchmarks: what decides PASS and FAIL."""

import pytest
from benchmarks.flame_graph import flame_graph
from benchmarks.outcome import Check, Outcome, Row, Series, regressions, row_from, row_record, table
from benchmarks.page import page
from benchmarks.spread import human, percentile, spread, thinned


def check(value, direction="<=", target=3.0, ratio=True, what="time"):
    return Check(what=what, value=value, unit="x", direction=direction, target=target, ratio=ratio)


def row(*checks, number="3"):
    return Row(number=number, measured="a hit", against="its floor", checks=checks)


@pytest.mark.parametrize(
    ("value", "direction", "passed"),
    [
        (3.0, "<=", True),
        (3.0001, "<=", False),
        (3.0, ">=", True),
        (2.9999, ">=", False),
        (3.0, "==", True),
        (3.5, "==", False),
        (float("nan"), "<=", False),
        (float("inf"), ">=", False),
    ],
)
def test_a_check_passes_exactly_when_its_value_meets_the_target(value, direction, passed):
    assert check(value, direction).passed is passed


def test_a_row_fails_with_any_of_its_checks_and_without_any():
    assert row(check(1), check(2)).passed
    assert not row(check(1), check(4)).passed
    assert not row().passed


def test_a_ratio_that_is_worse_by_more_than_a_third_is_a_regression_in_either_direction():
    before = [row(check(2.0)), row(check(100, ">=", 50), number="1a")]
    assert regressions([row(check(2.5)), row(check(80, ">=", 50), number="1a")], before) == {}
    (told,) = regressions([row(check(2.7))], before).values()
    assert told.startswith("row 3: time is 2.7 x, recorded 2")
    assert list(regressions([row(check(70, ">=", 50), number="1a")], before)) == [("1a", "time")]


def test_an_improvement_is_no_regression():
    assert regressions([row(check(0.1))], [row(check(2.0))]) == {}


def test_values_of_one_machine_are_not_compared_with_another_machine():
    assert regressions([row(check(9.0, ratio=False))], [row(check(1.0, ratio=False))]) == {}


def test_a_recorded_ratio_that_is_not_measured_any_more_is_told():
    found = regressions([row(check(1.0, what="other"))], [row(check(1.0))])
    assert found == {("3", "time"): "row 3: time was not measured"}


def test_a_ratio_that_is_not_a_number_is_a_regression():
    assert len(regressions([row(check(float("nan")))], [row(check(1.0))])) == 1


def test_rows_that_were_not_run_are_not_judged():
    assert regressions([], [row(check(1.0))]) == {}


def test_a_recorded_row_is_read_back_and_judged_anew():
    record = row_record(row(check(4.0)))
    assert record["passed"] is False
    assert row_from(record) == row(check(4.0))
    record["checks"][0]["value"] = 1.0
    assert row_from(record).passed


def test_the_table_is_in_the_order_of_row_numbers_and_names_what_fails():
    text = table([row(check(1), number="12"), row(check(9), number="1b"), row(check(1), number="1a")])
    numbers = [line.split()[0] for line in text.splitlines() if "; against" in line]
    assert numbers == ["1a", "1b", "12"]
    assert "FAIL time: 9 x (<= 3 x)" in text
    assert text.endswith("2 of 3 rows PASS")


def test_percentiles_interpolate_between_samples():
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile([7], 0.99) == 7
    found = spread(range(101))
    assert (found["p25"], found["median"], found["p99"], found["count"]) == (25, 50, 99, 101)


def test_thinning_keeps_order_and_bounds():
    kept = thinned([float(number) for number in range(2500)], most=1000)
    assert len(kept) <= 1000
    assert kept == sorted(kept)
    assert kept[0] == 0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.5e-5, "s", "25 us"),
        (1.5, "s", "1.5 s"),
        (-2e-6, "s", "-2 us"),
        (3.123, "x", "3.12 x"),
        (1, "", "1"),
    ],
)
def test_numbers_are_told_in_the_unit_of_a_person(value, unit, text):
    assert human(value, unit) == text


def test_the_page_tells_verdicts_and_samples(tmp_path):
    outcome = Outcome(rows=[row(check(4.0))], series={"3 hit": Series([1e-5, 2e-5, 3e-5])}, notes=["said"])
    about = {"cpu": "a CPU", "cores": 2, "python": "3.11"}
    kept = {"hits": {"date": "d", "machine": about, "scale": 1, "load": 0.5, **outcome.summary()}}
    text = page(kept, tmp_path)
    assert "| 3 | a hit | its floor | time 4 x (<= 3 x) | **FAIL** |" in text
    assert "| 3 hit | 20 us | 15 us to 25 us |" in text
    assert "- said" in text


def test_a_flame_graph_gives_every_frame_its_share():
    drawn = flame_graph({("main", "<slow>"): 3, ("main", "fast"): 1}, "title")
    assert "main: 4 samples, 100.0 %" in drawn
    assert "&lt;slow&gt;: 3 samples, 75.0 %" in drawn
