"""A private daemon for the length of a benchmark: its own socket, store and toolkit, always stopped.

With two cores or more the daemon and its compilers run where the benchmark allows; clients that are timed
are pinned to one core (:func:`pinned_run`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOC = "Ascend950PR_9579"
ROOT = Path(__file__).resolve().parent.parent
CORES = sorted(os.sched_getaffinity(0))
CLIENT_CORE = CORES[-1]
DAEMON_CORE = CORES[0]


def child_environment(**more: str) -> dict[str, str]:
    """This process's environment for Python children, which must be able to keep their compiled modules."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found = (str(ROOT / "src"), str(ROOT), environ.get("PYTHONPATH", ""))
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, found))
    environ["KAAS_LOG_FORMAT"] = "json"
    return environ | more


def on_core(core: int | None) -> Callable[[], None] | None:
    """For ``preexec_fn``: pin the child to that core."""
    return None if core is None else lambda: os.sched_setaffinity(0, {core})


def pinned_run(
    arguments: Sequence[str], environ: dict[str, str], *, core: int | None = CLIENT_CORE, timeout: float = 900
) -> str:
    """What a Python child on that core prints. Raises ``RuntimeError`` with what it said when it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        preexec_fn=on_core(core),
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(arguments)[:200]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    return done.stdout


def pinned_json(module: str, argument: Any, environ: dict[str, str], **options: Any) -> Any:
    """Run ``python -m benchmarks.<module> JSON`` on one core; its last line of output is JSON."""
    printed = pinned_run(["-m", f"benchmarks.{module}", json.dumps(argument)], environ, **options)
    return json.loads(printed.splitlines()[-1])


@dataclass(frozen=True)
class Node:
    """A running daemon; ``environ`` is what its clients need."""

    directory: Path
    environ: dict[str, str]
    process: subprocess.Popen[bytes]
    listening_s: float

    @property
    def store(self) -> Path:
        return Path(self.environ["KAAS_STORE"])

    @property
    def socket(self) -> Path:
        return Path(self.environ["KAAS_SOCKET"])

    @property
    def log(self) -> Path:
        return self.directory / "daemon.log"

    def events(self, message: str) -> list[dict[str, Any]]:
        """Log records with that message, each with its ``time`` (Unix seconds)."""
        lines = (line for line in self.log.read_text().splitlines() if message in line)
        found = []
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):
                record = json.loads(line)
                if record.get("message") == message:
                    found.append(record)
        return found


def _wait_for(node: Node, text: str) -> None:
    deadline = time.monotonic() + 180
    while text not in node.log.read_text():
        if node.process.poll() is not None:
            raise RuntimeError(
                f"the daemon exited with {node.process.returncode}:\n{node.log.read_text()[-4000:]}"
            )
        if time.monotonic() > deadline:
            raise RuntimeError(f"the daemon did not say {text!r} within 180 s")
        time.sleep(0.02)


@contextlib.contextmanager
def running_node(
    directory: Path | None = None, *, core: int | None = None, warm: bool = True, **settings: str
) -> Iterator[Node]:
    """Start ``python -m kaas.server`` in a directory of its own; ``settings`` become ``KAAS_<NAME>``.

    With ``core`` the daemon (and all it starts) is pinned to it. ``warm`` waits for the compile workers.
    """
    with contextlib.ExitStack() as closing:
        if directory is None:
            directory = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="kaas-bench-")))
        environ = child_environment(
            KAAS_SOCKET=str(directory / "kaas.sock"),
            KAAS_STORE=str(directory / "store"),
            **{
                f"KAAS_{field.upper()}": value
                for field, value in {"soc_name": SOC, "rest_address": "off", **settings}.items()
            },
        )
        began = time.monotonic()
        with (directory / "daemon.log").open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "kaas.server"],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=sink,
                preexec_fn=on_core(core),
            )
        try:
            assert process.stdout is not None
            banner = process.stdout.readline()
            node = Node(directory, environ, process, time.monotonic() - began)
            if not banner:
                raise RuntimeError(f"the daemon did not start:\n{node.log.read_text()[-4000:]}")
            if warm:
                _wait_for(node, "compile workers are warm")
            yield node
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
