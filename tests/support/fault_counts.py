"""Counts of injected faults by kind, added up over tests and workers and shown when the run ends.

Tests say :func:`count`; the numbers travel as properties of their reports, which is how they get out of a
worker process. ``tests/conftest.py`` prints them.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import pytest

PROPERTY = "injected fault"


class Counter(Protocol):
    """Adds so many faults of one kind to what the run shows at its end."""

    def __call__(self, kind: str, number: int = 1) -> None: ...


def record(request: pytest.FixtureRequest) -> Counter:
    """How the requesting test says what it injected."""

    def add(kind: str, number: int = 1) -> None:
        request.node.user_properties.append((PROPERTY, [kind, number]))

    return add


def totals(reports: Iterable[Any]) -> Mapping[str, int]:
    """Counts by kind from the reports of a run, the most frequent first."""
    found: collections.Counter[str] = collections.Counter()
    for report in reports:
        if getattr(report, "when", "") == "call" and not report.skipped:
            for name, value in report.user_properties:
                if name == PROPERTY:
                    kind, number = value
                    found[kind] += number
    return dict(found.most_common())
