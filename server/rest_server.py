"""REST server: uvicorn inside the daemon's own event loop, without its signal handlers and its ticking."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Generator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from kaas.server import listeners
from kaas.server.config import Address
from kaas.server.listeners import SocketAccess
from kaas.server.rest_guard import RestGuard


class _EmbeddedServer(uvicorn.Server):
    """Waits for an event where uvicorn would wake ten times a second, and leaves signals to the daemon."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stop_requested = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.stop_requested.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class RestServer:
    """One listener for an app, on TCP or a Unix socket.

    ``field`` is the configuration field that has the address. ``checks_host`` can be turned off for an app
    that takes nothing and tells no secrets, which may then be reached by any name.
    """

    def __init__(
        self,
        app: ASGIApp,
        address: Address,
        access: SocketAccess,
        *,
        allow_remote: bool,
        field: str = "rest_address",
        checks_host: bool = True,
    ) -> None:
        self._access = access
        self._field = field
        self._path = Path(address.path) if address.path else None
        self._own: tuple[int, int] | None = None
        if self._path is not None:
            self._socket = self._bind(self._path)
        else:
            self._socket = listeners.bind_tcp(address.host, address.port, field=field)
        self._config = uvicorn.Config(
            RestGuard(app, checks_host=checks_host and self._path is None, allow_remote=allow_remote),
            lifespan="off",
            access_log=False,
            log_config=None,
            date_header=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._serving: list[tuple[_EmbeddedServer, asyncio.Task[None]]] = []

    @property
    def url(self) -> str:
        """Where it listens, for people."""
        if self._path is not None:
            return f"unix:{self._path}"
        host, port = self._socket.getsockname()[:2]
        return (
            f"http://[{host}]:{port}" if self._socket.family == socket.AF_INET6 else f"http://{host}:{port}"
        )

    def start(self) -> None:
        """Begin to answer; the socket is listening already."""
        server = _EmbeddedServer(self._config)
        task = asyncio.create_task(server.serve([self._socket]), name="rest")
        self._serving.append((server, task))

    def renew(self) -> bool:
        """Listen at the socket's path anew if the socket was deleted; whether it was.

        What another process put there is left alone. Raises like
        :func:`kaas.server.listeners.claimed_socket`.
        """
        if self._path is None or os.path.lexists(self._path):
            return False
        # The server before goes on for those who are connected to it.
        self._socket = self._bind(self._path)
        self.start()
        return True

    async def stop(self) -> None:
        """Close the listener, let running answers end for about a second, cut the rest."""
        if self._path is not None:
            listeners.remove_own(self._path, self._own)
        for server, _ in self._serving:
            server.stop_requested.set()
        await asyncio.gather(*(task for _, task in self._serving))
        self._socket.close()

    def _bind(self, path: Path) -> socket.socket:
        bound = listeners.bind_unix(path, self._access, field=self._field)
        self._own = listeners.identity(path)
        return bound
