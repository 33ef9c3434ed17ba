"""A node's builder as a Ray worker sees it: the daemon that is there, or one of its own; plain values only.

Whoever runs this class has kaas installed; Ray itself is not needed here.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kaas.client.daemon_link import DaemonLink
from kaas.client.manifest import Entry
from kaas.client.prewarm_progress import ends_of_job
from kaas.client.prewarm_run import Task
from kaas.client.private_daemon import PrivateDaemon
from kaas.client.socket_probe import probe
from kaas.kernel_library.registry import parse_spec
from kaas.proto.canonical import canonical_digest
from kaas.proto.environment import Environment
from kaas.proto.errors import DaemonUnavailable, KaasError, PermissionDenied
from kaas.proto.locations import default_socket

HOME_VARIABLE = "KAAS_BUILDER_HOME"

PlainEntry = tuple[int, bytes, str]
"""Position, the spec's canonical JSON, SoC name."""


def builder_home() -> Path:
    """Where a builder's own socket and store are: ``KAAS_BUILDER_HOME``, else a directory of this user's
    below /var/tmp, which is local and outlives the run. Raises :class:`PermissionDenied` if it is another's.
    """
    home = Path(os.environ.get(HOME_VARIABLE) or f"/var/tmp/kaas-builder-{os.getuid()}")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = home.lstat()
    except OSError as error:
        raise PermissionDenied(f"{home} cannot be made: {error.strerror}", path=str(home)) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionDenied(
            f"{home} is no directory that only this user may write to",
            hint=f"name another with {HOME_VARIABLE}",
            path=str(home),
        )
    return home


class NodeBuilder:
    """Compiles for one node. Every answer is plain values; an error is its record under ``error``."""

    def __init__(self, config: str = "") -> None:
        self._config = config
        self._link: DaemonLink | None = None
        self._own: PrivateDaemon | None = None

    def start(self) -> dict[str, Any]:
        """Find this node's daemon or start one. Says the node's name, what decides its keys, and how."""
        try:
            path, way = self._find_or_start()
            self._link = DaemonLink(path)
            environment = self._link.environment()
        except KaasError as error:
            return {"node": socket.gethostname(), "error": error.to_record()}
        return {
            "node": socket.gethostname(),
            "daemon": way,
            "kaas_version": environment.kaas_version,
            "cann_version": environment.toolchain.cann_version,
            "soc_name": environment.target.soc_name,
            "identity": identity_of(environment),
        }

    def held(self, entries: Sequence[PlainEntry]) -> list[int]:
        """Positions of what the node holds already; none where that cannot be said."""
        if self._link is None:
            return []
        asked = [{"spec_json": spec, "soc_name": soc_name} for _, spec, soc_name in entries]
        try:
            reply = self._link.coverage(asked, all_targets=True, missing_limit=len(asked))
        except KaasError:
            return []
        missing = {one.index for one in reply.missing}
        if len(missing) + reply.held < len(asked):
            return []  # not all that is missing was told
        return [position for index, (position, _, _) in enumerate(entries) if index not in missing]

    def warm(self, entries: Sequence[PlainEntry], label: str) -> Iterator[dict[str, Any]]:
        """Have the daemon warm these; one answer for each, then nothing, or the ``error`` that ended it."""
        try:
            if self._link is None:
                raise DaemonUnavailable("this builder was not started")
            tasks = [
                Task(position, Entry(parse_spec(spec), soc_name, 0)) for position, spec, soc_name in entries
            ]
            for end in ends_of_job(self._link, tasks, label):
                yield {
                    "position": end.task.position,
                    "key": end.key,
                    "outcome": end.outcome,
                    "seconds": end.seconds,
                    "failure": end.error,
                }
        except KaasError as error:
            yield {"error": error.to_record()}

    def stop(self) -> None:
        """End the daemon, if it is our own; what it stored stays."""
        own, self._own = self._own, None
        if own is not None:
            own.stop()

    def _find_or_start(self) -> tuple[Path, str]:
        found = default_socket()
        problem = probe(found)
        if problem is None:
            return found, "reused"
        if not isinstance(problem, DaemonUnavailable):
            raise problem  # there is one, and it is not for us: no second one beside it
        home = builder_home()
        path = home / "kaas.sock"
        with (home / "start.lock").open("w") as lock:
            # Two workers of one machine: the second finds the first one's daemon.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if probe(path) is None:
                return path, "reused"
            self._own = self._started(home, path)
        return path, "started"

    def _started(self, home: Path, path: Path) -> PrivateDaemon:
        config_file = None
        if self._config:
            config_file = home / "builder.toml"
            config_file.write_text(self._config, encoding="utf-8")
        environ = {
            name: value for name, value in os.environ.items() if name not in ("KAAS_SOCKET", "KAAS_STORE")
        }
        flags = {"socket": str(path), "store": str(home / "store"), "rest_address": "off"}
        return PrivateDaemon(
            home, flags, config_file=config_file, environ=environ, purpose="builder's"
        ).__enter__()


def identity_of(environment: Environment) -> str:
    """A digest of all that decides keys: builders with equal ones make equal kernels."""
    plain = msgspec.to_builtins(environment)
    for name in ("generation", "target_source", "locality"):
        del plain[name]
    return canonical_digest(plain)
