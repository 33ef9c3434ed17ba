"""Sixteen ranks, four cold kernels, all launched and checked; also while compile workers are killed."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.daemon import DaemonProcess, until

RANK = Path(__file__).parents[1] / "support" / "launch_gemm.py"
RANKS = 16


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path, rest_address="off") as process:
        process.wait_ready()
        yield process


def start_ranks(daemon: DaemonProcess, shapes: list[tuple[int, int]]) -> list[subprocess.Popen[str]]:
    environ = {
        **os.environ,
        "KAAS_SOCKET": daemon.socket,
        "KAAS_STORE": str(daemon.store),
        "KAAS_TWIN_THREADS": "1",
    }
    return [
        subprocess.Popen(
            [sys.executable, str(RANK), *map(str, shapes[rank % len(shapes)])],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]


def right_answers(ranks: list[subprocess.Popen[str]]) -> Counter[str]:
    """Keys that the ranks launched and found right; fails with the first rank's words that did not."""
    keys: Counter[str] = Counter()
    for rank in ranks:
        output, trouble = rank.communicate(timeout=300)
        assert rank.returncode == 0, output + trouble
        keys[output.split()[2]] += 1
    return keys


def compiler_starts(daemon: DaemonProcess) -> int:
    return daemon.log_text().count("compiler start")


def test_sixteen_ranks_share_four_compiles_and_all_compute_right(daemon: DaemonProcess) -> None:
    keys = right_answers(start_ranks(daemon, [(80, 48 + 16 * index) for index in range(4)]))
    assert sorted(keys.values()) == [4, 4, 4, 4]
    assert compiler_starts(daemon) == 4


def test_sixteen_ranks_compute_right_while_a_compiling_worker_is_killed(daemon: DaemonProcess) -> None:
    ranks = start_ranks(daemon, [(96, 48 + 16 * index) for index in range(4)])
    victim = until(daemon.workers, what="a compiling worker")[0]
    with suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    keys = right_answers(ranks)
    assert sorted(keys.values()) == [4, 4, 4, 4]
    assert victim not in daemon.workers()
