"""A daemon of this process's own: started for one purpose, and gone when that is served or we are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from kaas.proto.errors import DaemonUnavailable

START_LIMIT_S = 120.0
STOP_LIMIT_S = 15.0
_LINES_TOLD = 8


class PrivateDaemon:
    """Serves between ``with`` and its end. ``flags`` are the daemon's, with underscores.

    Its output is in ``daemon.log`` in ``directory``. Entering raises :class:`DaemonUnavailable`, with the
    log's last lines, when it does not start.
    """

    def __init__(
        self,
        directory: Path,
        flags: Mapping[str, str],
        *,
        config_file: Path | None = None,
        environ: Mapping[str, str] | None = None,
        purpose: str = "private",
    ) -> None:
        self.log_path = directory / "daemon.log"
        self.banner = ""
        self._purpose = purpose
        self._environ = dict(os.environ if environ is None else environ)
        self._command = [sys.executable, "-m", "kaas.client.cli", "serve"]
        if config_file is not None:
            self._command += ["--config", str(config_file)]
        self._command += [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrivateDaemon:
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
                preexec_fn=_end_with_parent,
            )
        try:
            self.banner = self._wait_for_banner(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, by force if need be."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_for_banner(self, process: subprocess.Popen[bytes]) -> str:
        """The line with which the daemon says what it serves, once it does."""
        give_up = time.monotonic() + START_LIMIT_S
        while True:
            lines = self.log_path.read_text(errors="replace").splitlines()
            banner = next((line for line in lines if line.startswith("kaas serving")), None)
            if banner is not None:
                return banner
            if process.poll() is not None or time.monotonic() > give_up:
                told = "\n  ".join(lines[-_LINES_TOLD:])
                raise DaemonUnavailable(f"the {self._purpose} daemon did not start:\n  {told}")
            time.sleep(0.05)


def _end_with_parent() -> None:
    """In the daemon's process: get SIGTERM when whoever started it dies, however (prctl(2), Linux)."""
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
