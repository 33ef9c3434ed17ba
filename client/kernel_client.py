"""KernelClient: where a kernel comes from: memo, then the node's store, then the daemon."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from kaas.client.handle import KernelHandle, Origin
from kaas.client.lease_link import lease_link
from kaas.client.notices import warn
from kaas.client.priority import chosen_priority
from kaas.client.store_reader import StoreReader
from kaas.proto.errors import (
    ArtifactDamaged,
    DaemonUnavailable,
    DeadlineExceeded,
    InvalidArgument,
    KaasError,
    PermissionDenied,
    StoreUnavailable,
    StrictMiss,
    error_from_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kaas.cache.artifact import Artifact
    from kaas.client.daemon_link import DaemonLink
    from kaas.client.device import Device
    from kaas.kernel_library.spec import KernelSpec
    from kaas.proto.environment import Environment
    from kaas.proto.passport import KernelKey

Question = tuple["KernelSpec", str | None]
"""What a kernel is asked by: the spec, and the SoC name or ``None`` for the node's own."""


_ORIGINS: dict[int, Origin] = {1: "hit", 2: "compiled", 3: "joined"}
"""By the wire's Outcome."""


_FOR_EVER_S = 366 * 86400.0
_REPLACEMENT_S = 600.0


class _Flight:
    """One request under way, and everybody in this process who waits for it."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.handle: KernelHandle | None = None
        self.error: BaseException | None = None


class KernelClient:
    """Gets kernels from the node whose store and socket these are. Thread-safe and fork-safe."""

    def __init__(self, store: Path, socket: Path, memo: dict[Question, KernelHandle] | None = None) -> None:
        self.socket = socket
        self.memo: dict[Question, KernelHandle] = {} if memo is None else memo
        self._leases = lease_link(socket)
        self._store = StoreReader(store)
        self._link: DaemonLink | None = None
        self._lock = threading.Lock()
        self._flights: dict[Question, _Flight] = {}

    def renew_in_child(self) -> None:
        """After a fork: the parent's requests under way are not the child's. Handles stay."""
        self._lock = threading.Lock()
        self._flights = {}

    def link(self) -> DaemonLink:
        """The connection to the daemon, made when first needed."""
        if self._link is None:
            from kaas.client.daemon_link import DaemonLink

            self._link = DaemonLink(self.socket)
        return self._link

    def environment(self) -> Environment:
        """What decides keys on this node: as published in the store, else as the daemon says."""
        return self._store.environment() or self.link().environment()

    def device(self) -> Device:
        """This process's device. Raises :class:`DeviceError`."""
        from kaas.client.device import open_device

        return open_device(self.environment())

    def key(self, question: Question) -> KernelKey:
        """The key of a kernel on this node. Raises :class:`UnknownFamily` or :class:`UnsupportedTarget`."""
        spec, soc_name = question
        return self._store.key(self.environment(), spec, soc_name)

    def artifact_path(self, key: KernelKey) -> Path:
        """Where the store keeps a kernel, there or not."""
        return self._store.artifact_path(key)

    def find(self, question: Question, strict: bool = False) -> KernelHandle | None:
        """The kernel from the store, without asking anybody; ``None`` is a miss.

        ``strict``: should it prove damaged at its first use, it is not compiled anew then.
        """
        try:
            _, artifact = self._look_up(question)
        except (PermissionDenied, StoreUnavailable) as error:
            warn("the daemon is asked, because the store cannot be read: %s", error)
            return None
        if artifact is None:
            return None
        return self._keep(question, artifact, "store", partial(self._replacement, question, strict))

    def _look_up(self, question: Question) -> tuple[KernelKey | None, Artifact | None]:
        """Key and artifact in the store; no key without an environment there.

        Raises :class:`PermissionDenied` or :class:`StoreUnavailable` when the store cannot be read from here.
        """
        environment = self._store.environment()
        if environment is None:
            return None, None
        spec, soc_name = question
        key = self._store.key(environment, spec, soc_name)
        return key, self._store.find(key)

    def _strict_miss(self, question: Question) -> StrictMiss | None:
        """The answer to a strict question when no daemon holds the kernel; ``None``: the store cannot say."""
        try:
            key, artifact = self._look_up(question)
        except (PermissionDenied, StoreUnavailable):
            return None
        if artifact is not None:  # it came meanwhile, and the daemon will say so
            artifact.close()
            return None
        if key is None:
            return None
        spec, _ = question
        return StrictMiss(
            f"strict mode: the kernel {spec!r} is not in the store",
            hint="pre-warm it (kaas prewarm), or ask without strict",
            key=key,
            spec=spec.to_record(),
        )

    def _replacement(self, question: Question, strict: bool, error: KaasError) -> Artifact:
        """The daemon's artifact instead of one from the store that proved damaged at its first use."""
        warn("a damaged artifact is replaced: %s", error)
        return self._request(question, _REPLACEMENT_S, strict, chosen_priority(None))[0]

    def _keep(
        self,
        question: Question,
        artifact: Artifact,
        origin: Origin,
        replace: Callable[[KaasError], Artifact] | None = None,
    ) -> KernelHandle:
        # A second thread may have been first; everybody gets that one's handle.
        handle = self.memo.setdefault(question, KernelHandle(artifact, self.device, origin, replace))
        self._leases.took(handle.key, origin)
        return handle

    def fetch(
        self, question: Question, timeout: float | None, strict: bool, priority: str | None = None
    ) -> KernelHandle:
        """The kernel from the daemon, compiled if need be; threads with one question share one request.

        A ``strict`` question is asked, too, and compiles nothing: while the disk is full, kernels are in the
        daemon's memory alone. Raises what the daemon raised, :class:`DaemonUnavailable` (a strict question,
        :class:`StrictMiss`), or :class:`DeadlineExceeded` after ``timeout`` seconds.
        """
        timeout = _checked_timeout(timeout)
        priority = chosen_priority(priority)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            with self._lock:
                handle = self.memo.get(question)
                if handle is not None:
                    return handle
                flight = self._flights.get(question)
                leading = flight is None
                if flight is None:
                    flight = self._flights[question] = _Flight()
            if leading:
                left = max(left, 0.0) if left is not None else None
                return self._lead(flight, question, left, strict, priority)
            if not flight.done.wait(left):
                raise DeadlineExceeded(f"no kernel within {timeout:.3g} s", timeout_s=timeout)
            if flight.handle is not None:
                return flight.handle
            # The leader's deadline and strictness were its own; anything else would fail for us, too.
            if isinstance(flight.error, KaasError) and not isinstance(
                flight.error, (DeadlineExceeded, StrictMiss)
            ):
                raise error_from_record(flight.error.to_record()) from None

    def _lead(
        self, flight: _Flight, question: Question, timeout: float | None, strict: bool, priority: str
    ) -> KernelHandle:
        try:
            flight.handle = self._keep(question, *self._request(question, timeout, strict, priority))
            return flight.handle
        except BaseException as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                self._flights.pop(question, None)
            flight.done.set()

    def _request(
        self, question: Question, timeout: float | None, strict: bool, priority: str
    ) -> tuple[Artifact, Origin]:
        """Ask for a path first; ask for the bytes when the file cannot be read from here."""
        from kaas.cache.artifact import Artifact, open_artifact
        from kaas.client.socket_probe import require_daemon

        spec, soc_name = question
        deadline = None if timeout is None else time.monotonic() + timeout
        miss = self._strict_miss(question) if strict else None
        if miss is not None:
            try:
                require_daemon(self.socket, 0.0)
            except (DaemonUnavailable, PermissionDenied):
                raise miss from None
        link, canonical = self.link(), spec.canonical()
        reply = link.get_kernel(
            canonical, soc_name=soc_name, strict=strict, priority=priority, timeout=timeout
        )
        outcome = reply.outcome
        if not reply.artifact and reply.artifact_path:
            try:
                return open_artifact(reply.artifact_path, reply.key), _ORIGINS.get(outcome, "hit")
            except (FileNotFoundError, ArtifactDamaged, PermissionDenied, StoreUnavailable) as error:
                warn("the daemon's file cannot be used here, asking for its bytes: %s", error)
        if not reply.artifact:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            reply = link.get_kernel(
                canonical,
                soc_name=soc_name,
                strict=strict,
                inline_artifact=True,
                priority=priority,
                timeout=left,
            )
        artifact = Artifact(reply.artifact, expected_key=reply.key, origin="the daemon's reply")
        return artifact, _ORIGINS.get(outcome, "hit")


def _checked_timeout(timeout: float | None) -> float | None:
    """Seconds, or ``None`` for ever, which is also what more than a year means (gRPC knows no longer one)."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise InvalidArgument(
            f"timeout is {timeout!r}; legal: seconds from 0, or None for no limit",
            argument="timeout",
            legal="seconds from 0, or None",
        )
    return float(timeout) if timeout < _FOR_EVER_S else None
