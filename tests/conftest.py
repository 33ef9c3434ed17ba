"""Of the whole run: which tests share a process, and at its end the faults that tests injected, by kind."""

from __future__ import annotations

import pytest
from support.fault_counts import totals


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a module share a process with its daemon and compiled kernels, unless they name a group."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(item.config.rootpath))))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a kind. Not beside the fault tests: the process that prints may run none of them itself."""
    found = totals(report for reports in terminalreporter.stats.values() for report in reports)
    if found:
        terminalreporter.section("injected faults")
        for kind, number in found.items():
            terminalreporter.write_line(f"{number:7d}  {kind}")
        terminalreporter.write_line(f"{sum(found.values()):7d}  in all")
