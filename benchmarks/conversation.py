"""Children that stay: a line of JSON in, a line of JSON out, so that many can be told to start at once."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.node import on_core


class Child:
    """A Python child that answers. Raises ``RuntimeError`` when it dies instead."""

    def __init__(self, module: str, environ: dict[str, str], core: int | None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}"],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=on_core(core),
        )
        self.pid = self._process.pid

    def tell(self, order: Any) -> None:
        """Send one order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Its next answer; lines that are not JSON are somebody's chatter."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("{", "[")):
                with contextlib.suppress(json.JSONDecodeError):
                    return json.loads(line)
        raise RuntimeError(f"a child ended with status {self._process.wait()}")

    def ask(self, order: Any) -> Any:
        """Tell, and wait for the answer."""
        self.tell(order)
        return self.answer()

    def end(self) -> None:
        """Close its input and wait; kill it when it does not end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def children(
    count: int, module: str, environ: dict[str, str], core: Callable[[int], int | None]
) -> Iterator[list[Child]]:
    """``count`` children, pinned by their number, all ended afterwards."""
    started: list[Child] = []
    try:
        for number in range(count):
            started.append(Child(module, environ, core(number)))
        yield started
    finally:
        for child in started:
            child.end()


def serve(act: Callable[[Any], Any]) -> None:
    """In the child: answer every order until the input ends."""
    for line in sys.stdin:
        print(json.dumps(act(json.loads(line))), flush=True)
