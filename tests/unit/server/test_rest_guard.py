"""The guard before the REST app: who gets through, and how a refusal looks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kaas.server.rest_guard import MAX_BODY_BYTES, RestGuard


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"through"})


def ask(
    headers: dict[str, str], *, allow_remote: bool = False, checks_host: bool = True
) -> tuple[int, bytes]:
    guard = RestGuard(app, checks_host=checks_host, allow_remote=allow_remote, names={"localhost", "node7"})
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(guard({"type": "http", "method": "GET", "path": "/", "headers": raw}, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:7990", "127.0.0.1:7990", "127.9.9.9", "[::1]:1", "node7"]
)
def test_own_names_get_through(host: str) -> None:
    assert ask({"Host": host}) == (200, b"through")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7990", "192.0.2.1", "", "[", "127.0.0.1.evil.example"]
)
def test_foreign_hosts_are_refused_with_a_problem(host: str) -> None:
    status, body = ask({"Host": host})
    assert status == 403
    assert json.loads(body)["code"] == "permission_denied"


def test_a_request_without_host_is_refused() -> None:
    assert ask({})[0] == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "http://["])
def test_cross_site_requests_are_refused(origin: str) -> None:
    assert ask({"Host": "localhost:7990", "Origin": origin})[0] == 403


def test_the_daemons_own_page_gets_through() -> None:
    assert ask({"Host": "localhost:7990", "Origin": "http://localhost:7990"})[0] == 200


def test_remote_access_allows_addresses_but_no_foreign_name() -> None:
    assert ask({"Host": "192.0.2.1:7990"}, allow_remote=True)[0] == 200
    assert ask({"Host": "evil.example"}, allow_remote=True)[0] == 403


def test_a_unix_socket_needs_no_host() -> None:
    assert ask({"Host": "anything"}, checks_host=False)[0] == 200


@pytest.mark.parametrize("length", [str(MAX_BODY_BYTES + 1), "9" * 40, "-1", "x"])
def test_an_oversized_or_senseless_length_is_refused(length: str) -> None:
    assert ask({"Host": "localhost", "Content-Length": length})[0] == 413
