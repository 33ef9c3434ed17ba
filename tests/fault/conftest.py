"""Tests here count the faults that they inject."""

from __future__ import annotations

import pytest
from support.fault_counts import Counter, record

ONE_A_TEST = {
    "test_compiler_faults": "compiler or worker: hangs, forks, crashes, eats memory or lies",
    "test_full_disk": "disk without room",
}
ONE_A_ROUND = {
    "test_kills_at_random_moments_never_damage_what_is_served": "daemon: kill -9 under load",
    "test_no_artifact_mixes_two_builds": "compiler: other bytes every time, racing",
    "test_no_artifact_of_a_real_daemon_mixes_two_builds": "compiler: other bytes every time, racing",
    "test_kills_while_publishing_leave_whole_artifacts_and_nothing_else": "publisher: kill -9",
}


@pytest.fixture
def count_fault(request: pytest.FixtureRequest) -> Counter:
    """``count_fault(kind, number)``: say what was injected; the run shows the sums at its end."""
    return record(request)


@pytest.fixture(autouse=True)
def _faults_that_need_no_counting(request: pytest.FixtureRequest, count_fault: Counter) -> None:
    """Where a test is a fault, or each of its rounds is one."""
    module = request.module.__name__.rpartition(".")[2]
    if module in ONE_A_TEST:
        count_fault(ONE_A_TEST[module])
    if request.function.__name__ in ONE_A_ROUND:
        count_fault(ONE_A_ROUND[request.function.__name__], request.node.callspec.params["rounds"])
