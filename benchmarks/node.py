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

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


@dataclass(frozen=True)
class Node:
    """A running daemon; ``environ`` is what its clients need."""

    directory: Path
    environ: dict[str, str]
    process: subprocess.Popen[bytes]

    @property
    def store(self) -> Path:
        return Path(self.environ["KAAS_STORE"])


def _wait_until_serving(socket: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the daemon exited with {process.returncode}:\n{log.read_text()[-4000:]}")
        with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(f"unix:{socket}") as channel:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
        time.sleep(0.1)
    raise RuntimeError("the daemon did not start within 120 s")


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
        log = directory / "daemon.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "kaas.server"], env=environ, stdout=sink, stderr=sink
            )
        try:
            _wait_until_serving(directory / "kaas.sock", process, log)
            yield Node(directory=directory, environ=environ, process=process)
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
