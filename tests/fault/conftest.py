"""Tests here count the faults that they inject."""

from __future__ import annotations

import pytest
from support.fault_counts import Counter, record


@pytest.fixture
def count_fault(request: pytest.FixtureRequest) -> Counter:
    """``count_fault(kind, number)``: say what was injected; the run shows the sums at its end."""
    return record(request)
