"""``python -m benchmarks all | quick | NAME... | soak | page``: measure, judge, record.

``all`` and names record what they find in results.json and docs/benchmarks/, and write docs/benchmarks.md.
``quick`` measures little, records nothing, and fails when a ratio is worse than recorded by more than 30 %.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time

from benchmarks import results
from benchmarks.effort import Effort
from benchmarks.outcome import Outcome, Row, regressions, table
from benchmarks.spread import human

BENCHMARKS = (
    "rank_start",
    "hits",
    "launch",
    "cold_compile",
    "stampede",
    "prewarm",
    "readers",
    "store_scale",
    "idle_daemon",
    "twin_header",
    "lowering",
    "remote_tier",
)
FURTHER = ("full_store", "model_layers")
"""Measured when named: they take longer than all others together."""

QUICK = ("hits", "launch", "stampede", "readers", "rank_start")
QUICK_SCALE = 0.1
QUICK_LOOKS = 3


def _measured(name: str, effort: Effort) -> Outcome:
    print(f"-- {name}", file=sys.stderr, flush=True)
    began = time.monotonic()
    outcome: Outcome = importlib.import_module(f"benchmarks.{name}").measure(effort)
    print(f"-- {name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    for series, one in outcome.series.items():
        found = one.spread
        low, middle, high, rare = (human(found[share], one.unit) for share in ("p25", "median", "p75", "p99"))
        print(f"   {series}: median {middle} (quartiles {low} to {high}), p99 {rare}, n={found['count']}")
    for note in outcome.notes:
        print(f"   {note}")
    return outcome


def _run(names: list[str], effort: Effort, record: bool) -> int:
    rows: list[Row] = []
    for name in names:
        outcome = _measured(name, effort)
        rows += outcome.rows
        if record:
            results.record(name, outcome, effort)
        print(table(outcome.rows), flush=True)
    if record:
        results.write_page()
    print("\n" + table(rows))
    return 0 if all(row.passed for row in rows) else 1


def _quick(names: list[str]) -> int:
    """A regression shows in every look; a busy minute of the machine in one, or each in another ratio."""
    rows: list[Row] = []
    worse: list[str] = []
    for name in names:
        recorded = results.recorded_rows(name)
        measured = _measured(name, Effort(QUICK_SCALE)).rows
        found = regressions(measured, recorded)
        for _ in range(QUICK_LOOKS - 1):
            if not found:
                break
            print(*found.values(), "looking again", sep="\n", flush=True)
            measured = _measured(name, Effort(QUICK_SCALE)).rows
            again = regressions(measured, recorded)
            found = {ratio: again[ratio] for ratio in found if ratio in again}
        rows += measured
        worse += found.values()
    print(table(rows))
    print("\n".join(worse) or "no ratio is worse than recorded by more than 30 %")
    return 1 if worse else 0


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when every row that was measured passes (``quick``: when none regressed)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    choices = [*BENCHMARKS, *FURTHER, "all", "quick", "soak", "profiles", "page"]
    parser.add_argument("names", nargs="+", choices=choices, metavar="NAME", help=", ".join(choices))
    parser.add_argument("--scale", type=float, default=1.0, help="repetitions, of those of a full run")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the soak lasts")
    parser.add_argument("--no-record", action="store_true", help="write nothing")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that daemons are stopped on the way out
    if given.names == ["page"]:
        results.write_page()
        return 0
    if given.names == ["quick"]:
        return _quick(list(QUICK))
    if given.names == ["profiles"]:
        importlib.import_module("benchmarks.profiles").write()
        results.write_page()
        return 0
    if given.names == ["soak"]:
        return int(importlib.import_module("benchmarks.soak").main(given.minutes, not given.no_record))
    names = list(BENCHMARKS) if "all" in given.names else given.names
    return _run(names, Effort(given.scale), not given.no_record)


if __name__ == "__main__":
    sys.exit(main())
