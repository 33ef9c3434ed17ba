"""What all tests share: the count of faults that were injected, printed at the end of a run."""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest

_PROPERTY = "injected faults: "


@pytest.fixture
def count_faults(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """``count_faults(kind, number)``: so many faults of that kind were injected by this test."""

    def count(kind: str, number: int) -> None:
        record_property(_PROPERTY + kind, number)

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of injected faults per kind; reports carry them from the workers of xdist, too."""
    total: collections.Counter[str] = collections.Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        if report.when == "call":
            for name, number in report.user_properties:
                if name.startswith(_PROPERTY):
                    total[name.removeprefix(_PROPERTY)] += int(str(number))
    if total:
        terminalreporter.section("injected faults")
        for kind, number in sorted(total.items()):
            terminalreporter.write_line(f"{number:6d}  {kind}")
        terminalreporter.write_line(f"{total.total():6d}  in all")
