"""What the whole run says at its end: the faults that its tests injected, by kind, passed or not."""

from __future__ import annotations

import pytest
from support.fault_counts import totals


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a kind. Not beside the fault tests: the process that prints may run none of them itself."""
    found = totals(report for reports in terminalreporter.stats.values() for report in reports)
    if found:
        terminalreporter.section("injected faults")
        for kind, number in found.items():
            terminalreporter.write_line(f"{number:7d}  {kind}")
        terminalreporter.write_line(f"{sum(found.values()):7d}  in all")
