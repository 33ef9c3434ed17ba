"""What a node is asked for its coverage, over whichever transport its address names, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kaas.proto.errors import DaemonUnavailable, InternalError, InvalidRequest, error_from_record

if TYPE_CHECKING:
    from kaas.client.manifest import Entry

ANSWER_LIMIT_S = 30.0
"""How long a node may take for an answer beside what it was asked to wait."""

_MAX_REPLY_BYTES = 64 << 20


class Node(Protocol):
    """A node that can be asked."""

    name: str

    def ask(
        self,
        entries: Sequence[Entry],
        *,
        all_targets: bool,
        coverage: float,
        wait_s: float,
        missing_limit: int,
    ) -> CoverageAnswer:
        """How much of ``entries`` the node holds. Raises what it raised, or :class:`DaemonUnavailable`."""


class CoverageAnswer(NamedTuple):
    """A node's answer; ``missing`` are plain records of what weighs most."""

    coverage: float
    total: int
    held: int
    weight: float
    held_weight: float
    left_out: int
    soc_name: str
    cann_version: str
    missing: tuple[dict[str, Any], ...]


class SocketNode:
    """A daemon behind a Unix socket of this machine."""

    def __init__(self, socket: Path) -> None:
        from kaas.client.daemon_link import DaemonLink

        self.name = str(socket)
        self._link = DaemonLink(socket)

    def ask(
        self,
        entries: Sequence[Entry],
        *,
        all_targets: bool,
        coverage: float,
        wait_s: float,
        missing_limit: int,
    ) -> CoverageAnswer:
        """By gRPC."""
        reply = self._link.coverage(
            [
                {
                    "spec_json": entry.spec.canonical(),
                    "soc_name": entry.soc_name,
                    "cann": entry.cann,
                    "weight": entry.weight,
                }
                for entry in entries
            ],
            all_targets=all_targets,
            missing_limit=missing_limit,
            coverage=coverage,
            wait_s=wait_s,
            timeout=ANSWER_LIMIT_S,
        )
        missing = tuple(
            {
                "index": one.index,
                "key": one.key,
                "spec": json.loads(one.spec_json) if one.spec_json else None,
                "soc_name": one.soc_name,
                "weight": one.weight,
                "state": one.state,
                "error": json.loads(one.error_json) if one.error_json else None,
            }
            for one in reply.missing
        )
        names = [name for name in CoverageAnswer._fields if name != "missing"]
        return CoverageAnswer(**{name: getattr(reply, name) for name in names}, missing=missing)


class RestNode:
    """A daemon's REST API at ``http://host:port``."""

    def __init__(self, url: str) -> None:
        from urllib.parse import urlsplit

        self.name = url
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
        is_plain = parts.scheme == "http" and parts.hostname and port and not parts.path.strip("/")
        if not is_plain or parts.query or parts.username:
            raise InvalidRequest(f"{url[:200]!r} is no node", field="nodes", legal=LEGAL_NODES)
        self._host, self._port = str(parts.hostname), port

    def ask(
        self,
        entries: Sequence[Entry],
        *,
        all_targets: bool,
        coverage: float,
        wait_s: float,
        missing_limit: int,
    ) -> CoverageAnswer:
        """By HTTP."""
        answer = self._post(
            "/v1/coverage",
            {
                "entries": [
                    {
                        "spec": entry.spec.to_record(),
                        "soc_name": entry.soc_name,
                        "cann": entry.cann,
                        "weight": entry.weight,
                    }
                    for entry in entries
                ],
                "all_targets": all_targets,
                "missing_limit": missing_limit,
                "coverage": coverage,
                "wait_s": wait_s,
            },
            ANSWER_LIMIT_S + wait_s,
        )
        try:
            return CoverageAnswer(
                **{name: answer[name] for name in CoverageAnswer._fields if name != "missing"},
                missing=tuple(answer["missing"]),
            )
        except (KeyError, TypeError):
            raise InternalError(f"{self.name} answered something else", hint="versions differ") from None

    def _post(self, path: str, body: Mapping[str, Any], timeout: float) -> Any:
        import http.client

        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            content = reply.read(_MAX_REPLY_BYTES)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            raise DaemonUnavailable(f"no kaas daemon answers at {self.name}: {reason}") from None
        finally:
            connection.close()
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if reply.status == 200 and isinstance(answer, dict):
            return answer
        if isinstance(answer, dict) and "code" in answer:
            raise error_from_record({**answer, "message": answer.get("detail", answer["code"])})
        raise InternalError(f"{self.name} answered with status {reply.status}", hint="is it a kaas daemon?")


LEGAL_NODES = "a Unix socket's path, unix:/path, host:port or http://host:port"


def node_at(address: str) -> SocketNode | RestNode:
    """A node by its address. Raises :class:`InvalidRequest`."""
    if address.startswith("unix:/"):
        return SocketNode(Path(address.removeprefix("unix:")))
    if address.startswith("/"):
        return SocketNode(Path(address))
    return RestNode(address if "://" in address else f"http://{address}")
