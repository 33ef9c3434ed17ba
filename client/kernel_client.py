"""KernelClient: where a kernel comes from: memo, then the node's store, then the daemon."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from kaas.client.handle import KernelHandle, Origin, Replace
from kaas.client.lease_link import lease_link
from kaas.client.notices import warn
from kaas.client.priority import chosen_priority
from kaas.client.store_reader import StoreReader, target_for
from kaas.proto.errors import (
    ArtifactDamaged,
    DaemonUnavailable,
    DeadlineExceeded,
    InvalidArgument,
    KaasError,
    PermissionDenied,
    StoreUnavailable,
    StrictMiss,
    TargetMismatch,
    error_from_record,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kaas.cache.artifact import Artifact
    from kaas.client.daemon_link import DaemonLink
    from kaas.client.device import Device
    from kaas.kernel_library.spec import KernelSpec
    from kaas.proto.environment import Environment
    from kaas.proto.passport import KernelKey, Passport

Question = tuple["KernelSpec", str | None]
"""What a kernel is asked by: the spec, and the SoC name or ``None`` for the node's own."""


_ORIGINS: dict[int, Origin] = {1: "hit", 2: "compiled", 3: "joined", 4: "fetched"}
"""By the wire's Outcome."""


MAX_MISSES = 10_000
MAX_LISTED = 50
"""Missing kernels that a strict miss names."""

_FOR_EVER_S = 366 * 86400.0
_REPLACEMENT_S = 600.0


class _Flight:
    """One request under way, and everybody in this process who waits for it."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.handle: KernelHandle | None = None
        self.error: BaseException | None = None


class Miss:
    """A kernel that was not in the store when this process asked for it: what became of each question."""

    __slots__ = ("outcome", "outcomes", "waited_s")

    def __init__(self) -> None:
        self.outcome = ""
        self.outcomes: dict[str, int] = {}
        self.waited_s = 0.0


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
        self.strict = False
        """Whether every question of this process is a strict one."""
        self.misses: dict[Question, Miss] = {}
        """What this process found missing in the store, in that order."""

    def renew_in_child(self) -> None:
        """After a fork: the parent's requests under way are not the child's. Handles stay."""
        self._lock = threading.Lock()
        self._flights = {}
        self.misses = {}

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

        ``strict``: it is verified whole now, so that nothing is left that could miss later.
        """
        try:
            environment, artifact = self._look_up(question, strict)
        except (PermissionDenied, StoreUnavailable) as error:
            warn("the daemon is asked, because the store cannot be read: %s", error)
            return None
        if artifact is None or environment is None:
            return None
        handle = self._keep(question, artifact, "store", partial(self._replacement, question, environment))
        if strict:
            handle.verify(strict=True)  # another thread's, which was not strict, may have been first
        return handle

    def _look_up(self, question: Question, whole: bool) -> tuple[Environment | None, Artifact | None]:
        """What decides keys, and the artifact in the store; no environment there is a miss, too.

        Raises :class:`PermissionDenied` or :class:`StoreUnavailable` when the store cannot be read from here.
        """
        environment = self._store.environment()
        if environment is None:
            return None, None
        spec, soc_name = question
        return environment, self._store.find(self._store.key(environment, spec, soc_name), whole)

    def _replacement(
        self, question: Question, built_for: Environment, key: KernelKey, error: KaasError, strict: bool
    ) -> Artifact:
        """The same kernel instead of one from the store that proved damaged: from there, else the daemon.

        Raises :class:`TargetMismatch` naming what differs when the daemon would make another kernel now; the
        memo forgets this one then.
        """
        warn("a damaged artifact is replaced: %s", error)
        try:
            artifact = self._store.find(key, whole=True)
        except (PermissionDenied, StoreUnavailable):
            artifact = None  # the daemon may send its bytes
        origin: Origin = "store"
        if artifact is None:
            self._require_same(question, built_for, key, self._passport(question, self._store.environment()))
            artifact, origin = self._request(question, _REPLACEMENT_S, strict, chosen_priority(None))
            self._require_same(question, built_for, key, artifact.passport)
        self._leases.took(artifact.key, origin)
        return artifact

    def _passport(self, question: Question, environment: Environment | None) -> Passport | None:
        if environment is None:
            return None
        spec, soc_name = question
        return environment.passport(spec.to_record(), target_for(environment, soc_name))

    def _require_same(
        self, question: Question, built_for: Environment, key: KernelKey, now: Passport | None
    ) -> None:
        if now is None or now.key() == key:
            return
        from kaas.proto.passport import differences

        handle = self.memo.get(question)
        if handle is not None and handle.key == key:
            self.memo.pop(question, None)
        before = self._passport(question, built_for)
        assert before is not None
        first = differences(before, now)[0]
        raise TargetMismatch(
            f"the kernel {key[:12]} is damaged, and this node makes another one now: "
            f"it was built for {first.path} {first.ours}, the node has {first.theirs}",
            hint="get_kernel gives the node's own",
            field=first.path,
            built_for=first.ours,
            here=first.theirs,
        )

    def _keep(
        self,
        question: Question,
        artifact: Artifact,
        origin: Origin,
        replace: Replace | None = None,
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
                    break
                flight = self._flights.get(question)
                leading = flight is None
                if flight is None:
                    flight = self._flights[question] = _Flight()
            if leading:
                left = max(left, 0.0) if left is not None else None
                handle = self._lead(flight, question, left, strict, priority)
                break
            if not flight.done.wait(left):
                raise DeadlineExceeded(f"no kernel within {timeout:.3g} s", timeout_s=timeout)
            if flight.handle is not None:
                handle = flight.handle
                break
            # The leader's deadline and strictness were its own; anything else would fail for us, too.
            if isinstance(flight.error, KaasError) and not isinstance(
                flight.error, (DeadlineExceeded, StrictMiss)
            ):
                raise error_from_record(flight.error.to_record()) from None
        if strict:
            handle.verify(strict=True)
        return handle

    def _lead(
        self, flight: _Flight, question: Question, timeout: float | None, strict: bool, priority: str
    ) -> KernelHandle:
        began = time.monotonic()
        try:
            handle = self._keep(question, *self._request(question, timeout, strict, priority))
            self._missed(question, handle.origin, began)
            flight.handle = handle
            return handle
        except BaseException as error:
            self._missed(question, error.code if isinstance(error, KaasError) else "interrupted", began)
            if isinstance(error, StrictMiss):
                self._add_earlier_misses(error)
            flight.error = error
            raise
        finally:
            with self._lock:
                self._flights.pop(question, None)
            flight.done.set()

    def _missed(self, question: Question, outcome: str, began: float) -> None:
        """Note a miss, what became of it, and how long that took."""
        waited_s = time.monotonic() - began
        with self._lock:
            miss = self.misses.get(question)
            if miss is None:
                miss = Miss()
                if len(self.misses) < MAX_MISSES:
                    self.misses[question] = miss
            miss.outcome = outcome
            miss.outcomes[outcome] = miss.outcomes.get(outcome, 0) + 1
            miss.waited_s += waited_s

    def _add_earlier_misses(self, error: StrictMiss) -> None:
        """Say of a strict miss what else was missing so far: whoever warms the store wants all of it."""
        with self._lock:
            strict = [question for question, miss in self.misses.items() if miss.outcome == StrictMiss.code]
        error.details["missing"] = [
            {"spec": spec.to_record(), "soc_name": soc_name or ""} for spec, soc_name in strict[:MAX_LISTED]
        ]
        if len(strict) > 1:
            error.message += f"; {len(strict)} kernels were missing so far"

    def published_environment(self) -> Environment | None:
        """What the daemon published in the store last; nobody is asked."""
        return self._store.environment()

    def published_key(self, question: Question) -> str:
        """The key by the store's environment; empty where that does not say."""
        environment = self._store.environment()
        return "" if environment is None else self._store.key(environment, *question)

    def _before_strict(self, question: Question) -> Artifact | None:
        """What came into the store meanwhile; :class:`StrictMiss` if nothing, and no daemon can be asked."""
        from kaas.client.socket_probe import require_daemon

        try:
            environment, artifact = self._look_up(question, whole=True)
        except (PermissionDenied, StoreUnavailable):
            return None  # the store cannot say
        if artifact is not None or environment is None:
            return artifact
        try:
            require_daemon(self.socket, 0.0)
        except (DaemonUnavailable, PermissionDenied):
            spec, soc_name = question
            raise StrictMiss(
                f"strict mode: the kernel {spec!r} is not in the store, and no daemon can be asked",
                hint="pre-warm it with: kaas prewarm",
                key=self._store.key(environment, spec, soc_name),
                spec=spec.to_record(),
            ) from None
        return None

    def _request(
        self, question: Question, timeout: float | None, strict: bool, priority: str
    ) -> tuple[Artifact, Origin]:
        """Ask for a path first; ask for the bytes when the file cannot be read from here."""
        from kaas.cache.artifact import Artifact, open_artifact

        spec, soc_name = question
        deadline = None if timeout is None else time.monotonic() + timeout
        if strict:
            artifact = self._before_strict(question)
            if artifact is not None:
                return artifact, "store"
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
