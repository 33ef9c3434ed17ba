"""Every file operation of the store failing in every way: nothing half made, nothing lost, no surprise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fault_counts import Counter
from support.file_faults import DEATH, FAULTS, build_shim

SCENARIOS = "support.file_faults.store_scenarios"
EVERYDAY_STRIDE, THOROUGH_STRIDE = 89, 7
FEWEST_IN_ALL = 2000


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stride", [EVERYDAY_STRIDE, pytest.param(THOROUGH_STRIDE, marks=pytest.mark.slow)])
def test_a_store_tells_the_truth_after_any_failed_file_operation(
    tmp_path: Path, count_fault: Counter, stride: int
) -> None:
    """Publish, load, evict, quarantine, start, read as a client, pin: the scenarios have the oracle."""
    directory = tmp_path.resolve()
    outcome = subprocess.run(
        [sys.executable, "-m", SCENARIOS, str(directory), str(stride)],
        # The scenarios are found as this process finds them.
        env={**os.environ, "LD_PRELOAD": str(build_shim(directory)), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-4000:]
    told = json.loads(outcome.stdout)
    injected = told["injected"]
    for kind, number in injected.items():
        count_fault(f"file operation: {kind}", number)
    assert told["lies"] == []
    assert set(injected) == {fault.name for fault in (*FAULTS, DEATH)}
    if stride == THOROUGH_STRIDE:
        assert sum(injected.values()) >= FEWEST_IN_ALL
        assert {"open", "read", "write", "rename", "unlink", "fsync", "mkdir", "stat", "opendir"} <= set(
            told["operations"]
        )
