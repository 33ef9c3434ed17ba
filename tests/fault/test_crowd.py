"""A crowd of clients, each with its own connection, on a few cold kernels: one compiler start a kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.staged_node import StagedNode, staged_spec

CROWD = Path(__file__).parents[1] / "support" / "client_crowd.py"


def crowd_together(node: StagedNode, clients: int, processes: int, numbers: list[int]) -> Counter[str]:
    """How many clients got each kernel, all at one moment; fails unless each got a right one."""
    share = clients // processes
    command = [sys.executable, str(CROWD), node.daemon.socket, str(node.daemon.store), str(share)]
    crowd = [
        subprocess.Popen(
            [*command, *(staged_spec(number).decode() for number in numbers)],
            env={**os.environ, **node.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    try:
        for process in crowd:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in crowd:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        got: Counter[str] = Counter()
        for process in crowd:
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0
            for line in output.splitlines():
                length, _, _, is_right = line.split()
                assert is_right == "True", line
                got[length] += 1
        return got
    finally:
        for process in crowd:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("clients", "processes", "kernels", "rounds"),
    [
        (32, 4, 4, 2),
        pytest.param(256, 16, 8, 20, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_a_crowd_on_cold_kernels_starts_one_compiler_for_each(
    tmp_path: Path, clients: int, processes: int, kernels: int, rounds: int
) -> None:
    with StagedNode(tmp_path, "digest", rest_address="off") as node:
        for number in range(rounds):
            numbers = [1 + kernels * number + index for index in range(kernels)]
            got = crowd_together(node, clients, processes, numbers)
            assert sorted(got.values()) == [clients // kernels] * kernels
            assert len(node.toolkit.starts()) == kernels * (number + 1)
            assert len(node.compiler_starts()) == kernels * (number + 1)
