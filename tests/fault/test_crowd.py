"""A crowd of clients, each with its own connection, on a few cold kernels: one compiler start a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.staged_node import StagedNode, staged_spec

CROWD = Path(__file__).parents[1] / "support" / "client_crowd.py"


class Crowd:
    """Processes of ``clients / processes`` clients each."""

    def __init__(self, node: StagedNode, clients: int, processes: int) -> None:
        self.share = clients // processes
        command = [sys.executable, str(CROWD), node.daemon.socket, str(node.daemon.store), str(self.share)]
        self.processes = [
            subprocess.Popen(
                command,
                env={**os.environ, **node.environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def ask(self, numbers: list[int]) -> Counter[str]:
        """How many clients got each kernel, all at one moment; fails unless each got a right one."""
        self._say(json.dumps([staged_spec(number).decode() for number in numbers]))
        assert set(self._lines(1)) == {"ready\n"}
        self._say("go")
        got: Counter[str] = Counter()
        for line in self._lines(self.share):
            length, _, _, is_right = line.split()
            assert is_right == "True", line
            got[length] += 1
        return got

    def _say(self, line: str) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def _lines(self, count: int) -> list[str]:
        return [
            process.stdout.readline() for process in self.processes if process.stdout for _ in range(count)
        ]


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
    with StagedNode(tmp_path, "digest", rest_address="off") as node, Crowd(node, clients, processes) as crowd:
        for number in range(rounds):
            numbers = [1 + kernels * number + index for index in range(kernels)]
            got = crowd.ask(numbers)
            assert sorted(got.values()) == [clients // kernels] * kernels
            assert len(node.toolkit.starts()) == kernels * (number + 1)
            assert len(node.compiler_starts()) == kernels * (number + 1)
