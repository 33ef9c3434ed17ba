"""Guard in front of the REST app: no foreign web page and no endless body gets through.

A browser can be led to a loopback server by a name that its owner rebinds to 127.0.0.1. Such a request
carries the foreign name in ``Host``, and cross-site requests carry theirs in ``Origin``.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kaas.proto.errors import KaasError, PermissionDenied
from kaas.server.status import PROBLEM_MEDIA_TYPE, http_problem, http_status, json_bytes, problem_document

MAX_BODY_BYTES = 8 << 20


def local_names() -> frozenset[str]:
    """Names by which this machine may be addressed, besides IP literals."""
    return frozenset(name.casefold() for name in ("localhost", socket.gethostname()) if name)


class RestGuard:
    """ASGI middleware. ``checks_host`` is off for Unix sockets, which no browser reaches."""

    def __init__(
        self, app: ASGIApp, *, checks_host: bool, allow_remote: bool, names: Iterable[str] | None = None
    ) -> None:
        self._app = app
        self._checks_host = checks_host
        self._allow_remote = allow_remote
        self._names = local_names() if names is None else frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with a problem document, or let the request through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(headers) if self._checks_host else None
        if refusal is not None:
            await _problem(problem_document(refusal), http_status(refusal))(scope, receive, send)
        elif _declared_length(headers) > MAX_BODY_BYTES:
            await _problem(http_problem(413, _TOO_LARGE), 413)(scope, receive, send)
        else:
            await self._app(scope, _bounded(receive), send)

    def _refusal(self, headers: dict[bytes, str]) -> KaasError | None:
        host = headers.get(b"host", "")
        if not self._is_own(_host_of(f"//{host}")):
            return PermissionDenied(
                f"requests for host {host!r} are not served here",
                hint="address the daemon by a loopback name or address",
                field="Host",
            )
        origin = headers.get(b"origin")
        if origin is not None and _netloc(origin) != host.casefold():
            return PermissionDenied(f"requests from {origin!r} are not served here", field="Origin")
        return None

    def _is_own(self, host: str | None) -> bool:
        if not host:
            return False
        if host.casefold() in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return self._allow_remote or address.is_loopback


_TOO_LARGE = f"the body may have at most {MAX_BODY_BYTES} bytes"


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _netloc(origin: str) -> str | None:
    """``host:port`` of an Origin header, in lower case; ``None`` when it has none."""
    try:
        return urlsplit(origin).netloc.casefold() or None
    except ValueError:
        return None


def _declared_length(headers: dict[bytes, str]) -> int:
    text = headers.get(b"content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else MAX_BODY_BYTES + 1


def _bounded(receive: Receive) -> Receive:
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise HTTPException(413, _TOO_LARGE)
        return message

    return bounded


def _problem(document: dict[str, object], status: int) -> Response:
    return Response(json_bytes(document), status_code=status, media_type=PROBLEM_MEDIA_TYPE)
