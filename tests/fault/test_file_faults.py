"""Every file operation of the store fails in turn, in every way: nothing is lost, mixed up or made up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.file_faults import build_shim

EVERYDAY_STRIDE = 23
"""Prime, so that runs of different scenarios do not all hit the same kind of operation."""
SLOW_STRIDE = 3
FAULTS_IN_ALL = 2000


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: thousands of stores are made and synced."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as name:
        yield Path(name)


def disturbed(directory: Path, stride: int) -> tuple[dict[str, int], list[str]]:
    """Injected faults per kind, and every lie that the store told afterwards."""
    shim = build_shim(directory)
    finished = subprocess.run(
        [sys.executable, "-m", "support.file_faults.store_scenarios", str(directory), str(stride)],
        env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    found = json.loads(finished.stdout)
    return found["injected"], found["lies"]


def test_the_store_tells_the_truth_after_a_failed_file_operation(
    directory: Path, count_faults: Callable[[str, int], None]
) -> None:
    injected, lies = disturbed(directory, EVERYDAY_STRIDE)
    assert not lies, "\n".join(lies[:20])
    assert set(injected) == {
        "ENOSPC",
        "EIO",
        "EINTR",
        "EBUSY",
        "ESTALE",
        "short",
        "ENOSPC from there on",
        "EIO from there on",
        "kill -9",
    }
    for kind, number in injected.items():
        count_faults(f"file operation: {kind}", number)


@pytest.mark.slow
def test_the_store_tells_the_truth_after_any_third_file_operation_failed(
    directory: Path, count_faults: Callable[[str, int], None]
) -> None:
    injected, lies = disturbed(directory, SLOW_STRIDE)
    assert not lies, f"{len(lies)} lies:\n" + "\n".join(lies[:20])
    for kind, number in injected.items():
        count_faults(f"file operation: {kind}", number)
    assert sum(injected.values()) >= FAULTS_IN_ALL
