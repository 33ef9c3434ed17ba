"""A real daemon in a process of its own, with its own socket, store and REST port; always stopped."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

START_LIMIT_S = 120.0
STOP_LIMIT_S = 30.0


class DaemonProcess:
    """``with DaemonProcess(tmp_path, soc_name="Ascend950PR_9579") as daemon: ...``

    ``options`` become flags of ``python -m kaas.server``; ``environ`` is laid over the test's own. The
    directory keeps socket, store and log, so that a second instance in it continues where the first ended.
    Entering waits for the banner (it listens); :meth:`wait_ready` waits for warm workers.
    """

    def __init__(self, directory: Path, *, environ: Mapping[str, str] | None = None, **options: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        # A Unix socket's path is limited to 107 bytes, and test directories can be deep.
        self._short = Path(tempfile.mkdtemp(prefix="kaas-"))
        self.directory = directory
        self.log_path = directory / "daemon.log"
        self.options = {
            "socket": str(self._short / "kaas.sock"),
            "store": str(directory / "store"),
            "rest_address": "127.0.0.1:0",
            "soc_name": "Ascend950PR_9579",
            **options,
        }
        # Everything that the daemon starts works below its TMPDIR, which is how orphans are found.
        self._mark = str(self._short)
        self.environ = {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": self._mark, **(environ or {})}
        self.process: subprocess.Popen[str] | None = None
        self.banner = ""

    @property
    def socket(self) -> str:
        return self.options["socket"]

    @property
    def store(self) -> Path:
        return Path(self.options["store"])

    @property
    def rest_url(self) -> str:
        """Base URL of the REST API, from the banner."""
        match = re.search(r"REST on (http://\S+?),", self.banner)
        assert match, f"no REST address in {self.banner!r}"
        return match.group(1)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def command(self) -> list[str]:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self.options.items()]
        return [sys.executable, "-m", "kaas.server", *flags]

    def start(self) -> DaemonProcess:
        """Start the process and wait for its banner; raises with the log's end if it exits instead."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                text=True,
                env=self.environ,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        watchdog = threading.Timer(START_LIMIT_S, self.process.kill)
        watchdog.start()
        try:
            self.banner = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        if not self.banner:
            status = self.process.wait()
            raise RuntimeError(f"the daemon did not start (status {status}): {self.log_text()[-4000:]}")
        return self

    def wait_ready(self, limit_s: float = START_LIMIT_S) -> None:
        """Wait until the health service says that workers are warm and the store is usable."""
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service="kaas.ready")
            for update in stub.Watch(request, timeout=limit_s, wait_for_ready=True):
                if update.status == health_pb2.HealthCheckResponse.SERVING:
                    return
        raise RuntimeError(f"the daemon went away: {self.log_text()[-4000:]}")

    def kill(self) -> None:
        """SIGKILL the daemon alone, as an out-of-memory killer would; its children get no signal from us."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._close_pipe()

    def stop(self) -> int:
        """SIGTERM and wait; returns the exit status. Kills the daemon if it outlasts the limit."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._close_pipe()
        return self.process.returncode

    def workers(self) -> list[int]:
        """Live compile workers."""
        return [pid for pid in self.children() if process_name(pid) == "kaas-worker"]

    def discard(self) -> None:
        """Remove the socket's directory; for an instance that was never entered."""
        shutil.rmtree(self._short, ignore_errors=True)

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")

    def children(self) -> list[int]:
        """Live processes that the daemon left or has: its zygote, workers and compilers."""
        return [pid for pid in descendants(self._mark, self.pid) if pid != self.pid]

    def _close_pipe(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> DaemonProcess:
        try:
            return self.start()
        except BaseException:
            self.discard()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.stop()
            for pid in self.children():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        finally:
            self.discard()


def descendants(mark: str, session: int) -> list[int]:
    """Live (not zombie) processes with ``mark`` in their environment, or in that session."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] == "Z":
                continue
            if int(fields[3]) == session or mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def process_name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def until(condition: Callable[[], T], limit_s: float = 30.0, what: str = "condition") -> T:
    """Poll ``condition`` until it holds; returns its value. For what another process does in its own time."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {limit_s} s")
        time.sleep(0.02)
