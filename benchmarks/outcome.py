"""What a benchmark found: series of samples, checks against targets, facts worth telling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from benchmarks.spread import Spread, human, spread, thinned

Direction = Literal["<=", ">=", "=="]
MOST_WORSE = 1.30
"""A ratio may come out worse than the recorded one by this factor before it counts as a regression."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One measured value against its target. ``ratio`` values travel between machines, others do not."""

    what: str
    value: float
    unit: str
    direction: Direction
    target: float
    ratio: bool = False

    @property
    def passed(self) -> bool:
        """Whether the target is met; a value that is not a number never meets it."""
        if not math.isfinite(self.value):
            return False
        if self.direction == "<=":
            return self.value <= self.target
        if self.direction == ">=":
            return self.value >= self.target
        return self.value == self.target

    def told(self) -> str:
        """``3.1 x (<= 3 x)``."""
        return f"{human(self.value, self.unit)} ({self.direction} {human(self.target, self.unit)})"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table: it passes when all of its checks do."""

    number: str
    measured: str
    against: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """A row without a check proves nothing and fails."""
        return bool(self.checks) and all(check.passed for check in self.checks)


@dataclass
class Series:
    """Samples of one thing, in ``unit``, in the order they were taken."""

    samples: list[float] = field(default_factory=list)
    unit: str = "s"

    @property
    def median(self) -> float:
        """The middle sample."""
        return self.spread["median"]

    @property
    def spread(self) -> Spread:
        """Of all samples."""
        return spread(self.samples)


@dataclass(kw_only=True)
class Outcome:
    """Of one benchmark: its rows, what they come from, and sentences about it."""

    rows: list[Row]
    series: dict[str, Series]
    notes: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """What the recorded results keep."""
        return {
            "rows": [row_record(row) for row in self.rows],
            "series": {name: {"unit": one.unit, **one.spread} for name, one in self.series.items()},
            "notes": self.notes,
        }

    def ratios(self) -> list[dict[str, Any]]:
        """Values that travel between machines, each with its row's number and what was measured."""
        return [
            {"number": row.number, "what": check.what, "value": check.value}
            for row in self.rows
            for check in row.checks
            if check.ratio
        ]

    def raw(self) -> dict[str, Any]:
        """The samples, thinned."""
        return {
            name: {"unit": one.unit, "count": len(one.samples), "samples": thinned(one.samples)}
            for name, one in self.series.items()
        }


def row_record(row: Row) -> dict[str, Any]:
    """JSON-able, with the verdict."""
    return {
        "number": row.number,
        "measured": row.measured,
        "against": row.against,
        "passed": row.passed,
        "checks": [{**asdict(check), "passed": check.passed} for check in row.checks],
    }


def row_from(record: dict[str, Any]) -> Row:
    """The row of a record; verdicts are worked out anew."""
    checks = tuple(
        Check(**{name: value for name, value in check.items() if name != "passed"})
        for check in record["checks"]
    )
    return Row(number=record["number"], measured=record["measured"], against=record["against"], checks=checks)


def regressions(now: Sequence[Row], recorded: Sequence[Row]) -> dict[tuple[str, str], str]:
    """Ratios that came out worse than recorded by more than 30 %, and recorded ones that are gone.

    A sentence about each, by the row's number and what was measured.
    """
    known = {(row.number, check.what): check for row in recorded for check in row.checks if check.ratio}
    measured = {(row.number, check.what): check for row in now for check in row.checks if check.ratio}
    numbers = {row.number for row in now}
    found = {}
    for (number, what), before in known.items():
        if number not in numbers:
            continue
        after = measured.get((number, what))
        if after is None:
            found[number, what] = f"row {number}: {what} was not measured"
            continue
        worse = _worse_by(before, after)
        if worse > MOST_WORSE:
            found[number, what] = (
                f"row {number}: {what} is {after.value:.3g} {after.unit}, recorded {before.value:.3g}: "
                f"{worse:.2f} times worse"
            )
    return found


def least_good(rows: Sequence[Row], runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[Row]:
    """The rows, each ratio at its least good value in them and in the ratios of ``runs``."""
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        for one in run:
            found.setdefault((one["number"], one["what"]), []).append(one["value"])

    def with_least(number: str, check: Check) -> Check:
        if not check.ratio:
            return check
        values = [check.value, *found.get((number, check.what), ())]
        return replace(check, value=min(values) if check.direction == ">=" else max(values))

    return [replace(row, checks=tuple(with_least(row.number, check) for check in row.checks)) for row in rows]


def _worse_by(before: Check, after: Check) -> float:
    if not math.isfinite(after.value):
        return math.inf
    good, bad = (after.value, before.value) if after.direction == ">=" else (before.value, after.value)
    return math.inf if good <= 0 < bad else bad / good if good > 0 else 1.0


def table(rows: Sequence[Row]) -> str:
    """The rows as text: number, verdict, what was measured, values with their targets."""
    lines = []
    for row in sorted(rows, key=_order):
        verdict = "PASS" if row.passed else "FAIL"
        lines.append(f"{row.number:>3}  {verdict}  {row.measured}; against {row.against}")
        for check in row.checks:
            mark = "     " if check.passed else "FAIL "
            lines.append(f"        {mark}{check.what}: {check.told()}")
    passed = sum(row.passed for row in rows)
    lines.append(f"{passed} of {len(rows)} rows PASS")
    return "\n".join(lines)


def _order(row: Row) -> tuple[int, str]:
    digits = "".join(character for character in row.number if character.isdigit())
    return int(digits or 0), row.number
