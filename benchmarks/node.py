"""A private daemon for the length of a benchmark: its own socket, store and toolkit, always stopped."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Node:
    """A running daemon; ``environ`` is what its clients need."""

    directory: Path
    environ: dict[str, str]
    process: subprocess.Popen[bytes]

    @property
    def store(self) -> Path:
        return Path(self.environ["KAAS_STORE"])

    @property
    def log(self) -> Path:
        return self.directory / "daemon.log"


def _wait_until_ready(node: Node) -> None:
    """Until the compile workers are warm, which the daemon says in its log."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        log = node.log.read_text()
        if "compile workers are warm" in log:
            return
        if node.process.poll() is not None:
            raise RuntimeError(f"the daemon exited with {node.process.returncode}:\n{log[-4000:]}")
        time.sleep(0.05)
    raise RuntimeError("the daemon was not ready within 120 s")


@contextlib.contextmanager
def running_node(**settings: str) -> Iterator[Node]:
    """Start ``python -m kaas.server`` in a directory of its own; ``settings`` become ``KAAS_<NAME>``."""
    with tempfile.TemporaryDirectory(prefix="kaas-bench-") as name:
        directory = Path(name)
        environ = {
            **os.environ,
            "KAAS_SOCKET": str(directory / "kaas.sock"),
            "KAAS_STORE": str(directory / "store"),
            "KAAS_REST_ADDRESS": "off",
            **{f"KAAS_{field.upper()}": value for field, value in settings.items()},
        }
        with (directory / "daemon.log").open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "kaas.server"], env=environ, stdout=sink, stderr=sink
            )
        node = Node(directory=directory, environ=environ, process=process)
        try:
            _wait_until_ready(node)
            yield node
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
