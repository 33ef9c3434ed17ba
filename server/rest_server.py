"""REST server: uvicorn inside the daemon's own event loop, without its signal handlers and its ticking."""

from __future__ import annotations

import asyncio
import contextlib
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

    ``field`` is the configuration field that has the address. ``checks_host`` can be turned off for an app that
    takes nothing and tells no secrets, which may then be reached by any name.
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
        self._path = Path(address.path) if address.path else None
        if self._path is not None:
            self._socket = listeners.bind_unix(self._path, access, field=field)
            self._own = listeners.identity(self._path)
        else:
            self._socket = listeners.bind_tcp(address.host, address.port, field=field)
        guarded = RestGuard(app, checks_host=checks_host and self._path is None, allow_remote=allow_remote)
        self._server = _EmbeddedServer(
            uvicorn.Config(
                guarded,
                lifespan="off",
                access_log=False,
                log_config=None,
                date_header=False,
                server_header=False,
                proxy_headers=False,
                ws="none",
                timeout_graceful_shutdown=1,
            )
        )
        self._task: asyncio.Task[None] | None = None

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
        self._task = asyncio.create_task(self._server.serve([self._socket]), name="rest")

    async def stop(self) -> None:
        """Close the listener, let running answers end for about a second, cut the rest."""
        if self._path is not None:
            listeners.remove_own(self._path, self._own)
        self._server.stop_requested.set()
        if self._task is not None:
            await self._task
        self._socket.close()
