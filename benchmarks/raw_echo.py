"""The floor for a round trip: a raw Unix-socket echo server in a process of its own, 200-byte messages."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

MESSAGE = b"x" * 200


def _serve(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(4096):
                connection.sendall(data)


@contextlib.contextmanager
def echo() -> Iterator[Callable[[], None]]:
    """Yield a function that makes one round trip."""
    with tempfile.TemporaryDirectory(prefix="kaas-echo-") as name:
        path = str(Path(name) / "echo.sock")
        server = multiprocessing.get_context("spawn").Process(target=_serve, args=(path,), daemon=True)
        server.start()
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        while True:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                client.connect(path)
                break
            os.sched_yield()

        def round_trip() -> None:
            client.sendall(MESSAGE)
            client.recv(4096)

        try:
            yield round_trip
        finally:
            client.close()
            server.join(timeout=5)
