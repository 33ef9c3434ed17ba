"""DaemonLink: the daemon's gRPC contract as plain calls that raise kaas's errors.

grpc costs a tenth of a second to import, so it is imported by the first call, never with this module.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kaas.client.notices import warn
from kaas.client.plain_link import PlainReply, ask_plainly
from kaas.client.priority import chosen_priority
from kaas.client.process_identity import job_and_rank
from kaas.client.progress_text import progress_text
from kaas.client.socket_probe import PATIENCE_S, require_daemon
from kaas.proto.errors import (
    DaemonUnavailable,
    DeadlineExceeded,
    InternalError,
    KaasError,
    Overloaded,
    PermissionDenied,
    ShuttingDown,
    error_from_record,
)

if TYPE_CHECKING:
    from pathlib import Path

    import grpc

    from kaas.client.priority import Priority
    from kaas.proto.environment import Environment
    from kaas.proto.v1 import kernel_service_pb2 as pb

ERROR_METADATA_KEY = "kaas-error-bin"
READINESS = "kaas.ready"
"""The health service's name for: workers are warm and the store is usable."""

_RETRY_FIRST_S = 0.1
_RETRY_LONGEST_S = 2.0

Reply = TypeVar("Reply")


class DaemonLink:
    """One process's connection to the daemon at a Unix socket; made when first needed, renewed when lost.

    Thread-safe. A forked child makes a connection of its own. Every method raises the error class that the
    daemon raised, :class:`DaemonUnavailable` when nobody listens, or :class:`PermissionDenied`.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._abandoned: list[grpc.Channel] = []
        _links.add(self)

    def forget_in_child(self) -> None:
        """Leave the parent's connection alone; called in every forked child."""
        self._lock = threading.Lock()
        if self._channel is not None:
            # Closing it here would touch the parent's threads, which the child does not have.
            self._abandoned.append(self._channel)
            self._channel = None

    def _open(self) -> grpc.Channel:
        import grpc

        with self._lock:
            if self._channel is None:
                self._channel = grpc.insecure_channel(
                    f"unix:{self.socket}",
                    options=(
                        ("grpc.default_authority", "localhost"),
                        ("grpc.max_receive_message_length", -1),
                        ("grpc.enable_retries", 0),
                        # Its own connection: a lost one's back-off must not delay the next.
                        ("grpc.use_local_subchannel_pool", 1),
                    ),
                )
            return self._channel

    def _drop_channel(self) -> None:
        with self._lock:
            # Not closed: another thread's call on it may still be answered. It goes with its last reference.
            self._channel = None

    def close(self) -> None:
        """Close the connection; the next call makes a new one."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _ask(self, call: Callable[[Any], Reply], patience_s: float = PATIENCE_S) -> Reply:
        """One call of the kernel service on a live daemon, errors translated."""
        from kaas.proto.v1 import kernel_service_pb2_grpc

        stub = kernel_service_pb2_grpc.KernelServiceStub
        return self._on_channel(lambda channel: call(stub(channel)), patience_s)  # type: ignore[no-untyped-call]

    def _on_channel(self, call: Callable[[grpc.Channel], Reply], patience_s: float) -> Reply:
        require_daemon(self.socket, patience_s)
        import grpc

        try:
            return call(self._open())
        except grpc.RpcError as error:
            translated = self._translate(error)
            if isinstance(translated, DaemonUnavailable):
                self._drop_channel()
            raise translated from None

    def _translate(self, error: Any) -> KaasError:
        """The daemon's own error from the trailing metadata, else what the status says of the transport."""
        import grpc

        for key, value in error.trailing_metadata() or ():
            if key == ERROR_METADATA_KEY:
                try:
                    return error_from_record(msgspec.json.decode(value))
                except msgspec.DecodeError:
                    break
        code, details = error.code(), error.details() or ""
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return DaemonUnavailable(
                f"the connection to the kaas daemon at {self.socket} was lost: {details}",
                socket=str(self.socket),
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded("the daemon did not answer in time")
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return PermissionDenied(details or "the daemon refused this user", socket=str(self.socket))
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return InternalError(
                f"the daemon does not know this request: {details}", hint="daemon and client versions differ"
            )
        return InternalError(f"the daemon answered {code.name}: {details}")

    def get_kernel(
        self,
        spec_json: bytes,
        *,
        soc_name: str | None = None,
        strict: bool = False,
        inline_artifact: bool = False,
        priority: str | None = None,
        timeout: float | None = None,
    ) -> pb.GetKernelResponse | PlainReply:
        """Find or compile one kernel; ``timeout`` is seconds for all tries together.

        It is asked on the daemon's plain socket, and by gRPC when that cannot be or the bytes are wanted.
        The request is idempotent, so a daemon that dies or is restarted meanwhile is asked again until the
        deadline, and an overloaded one with growing pauses. Raises :class:`DeadlineExceeded`, whose details
        say how far the kernel was (``state``, ``place``, ``estimate_s``) if the daemon could tell.
        """
        urgency = chosen_priority(priority)
        deadline = None if timeout is None else time.monotonic() + timeout
        pause: float = _RETRY_FIRST_S
        last: KaasError | None = None
        was_lost = False
        if not inline_artifact:
            try:
                answer = ask_plainly(
                    self.socket,
                    spec_json,
                    soc_name=soc_name,
                    strict=strict,
                    priority=urgency,
                    timeout=timeout,
                )
                if answer is not None:
                    return answer
            except DeadlineExceeded as error:
                raise self._too_late(timeout, error) from error
            except DaemonUnavailable:
                # It died, or does not answer here, as when this process has many connections; gRPC tells.
                was_lost = True
            except (ShuttingDown, Overloaded) as error:
                warn("%s; asking again until the deadline", error.message)
                last = error
        if last is None and not was_lost:
            # First, so that without a daemon grpc is not even imported.
            require_daemon(self.socket, PATIENCE_S if timeout is None else min(PATIENCE_S, max(0.0, timeout)))
        request = _request(spec_json, soc_name or "", strict, inline_artifact, urgency)
        while True:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise self._too_late(timeout, last)
            try:
                reply: pb.GetKernelResponse = self._ask(
                    lambda stub, left=remaining: stub.GetKernel(request, timeout=left),  # type: ignore[misc]
                    patience_s=0.0,
                )
                return reply
            except DeadlineExceeded as error:
                raise self._too_late(timeout, error if error.details else last) from error
            except (DaemonUnavailable, ShuttingDown, Overloaded) as error:
                if type(error) is not type(last):
                    warn("%s; asking again until the deadline", error.message)
                last = error
            left = pause if deadline is None else min(pause, max(0.0, deadline - time.monotonic()))
            time.sleep(left * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _RETRY_LONGEST_S)

    def _too_late(self, timeout: float | None, last: KaasError | None) -> DeadlineExceeded:
        how_far = last.details if isinstance(last, DeadlineExceeded) else {}
        if "state" in how_far:
            place, estimate_s = int(how_far.get("place", 0)), float(how_far.get("estimate_s", 0.0))
            because = f"; it is {progress_text(str(how_far['state']), place, estimate_s)}"
        else:
            because = f"; before that: {last.message}" if last else ""
        return DeadlineExceeded(
            f"no kernel within {timeout:.3g} s{because}"
            if timeout is not None
            else f"no kernel in time{because}",
            hint="ask again with a longer timeout; a compile under way goes on",
            **{**how_far, "timeout_s": timeout},
        )

    def list_kernels(self, *, timeout: float = 30, **filters: Any) -> pb.ListKernelsResponse:
        """One page of cached kernels; ``filters`` are the fields of ListKernelsRequest."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.ListKernelsRequest(**filters)
        reply: pb.ListKernelsResponse = self._ask(lambda stub: stub.ListKernels(request, timeout=timeout))
        return reply

    def describe(self, key: str, *, timeout: float = 30) -> pb.DescribeKernelResponse:
        """One cached kernel by key or unambiguous prefix. Raises :class:`KernelNotFound`."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.DescribeKernelRequest(key=key)
        reply: pb.DescribeKernelResponse = self._ask(
            lambda stub: stub.DescribeKernel(request, timeout=timeout)
        )
        return reply

    def explain(
        self, spec_json: bytes, soc_name: str | None = None, *, timeout: float = 30
    ) -> pb.ExplainResponse:
        """Why a spec hits or misses here, field by field."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.ExplainRequest(spec_json=spec_json, soc_name=soc_name or "")
        reply: pb.ExplainResponse = self._ask(lambda stub: stub.Explain(request, timeout=timeout))
        return reply

    def list_failures(self, *, timeout: float = 30, **filters: Any) -> pb.ListFailuresResponse:
        """One page of remembered failures; ``filters`` are the fields of ListFailuresRequest."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.ListFailuresRequest(**filters)
        reply: pb.ListFailuresResponse = self._ask(lambda stub: stub.ListFailures(request, timeout=timeout))
        return reply

    def clear_failures(self, key: str = "", *, everything: bool = False, timeout: float = 30) -> list[str]:
        """Forget one remembered failure, by key or unambiguous prefix, or all; returns their keys."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.ClearFailuresRequest(key=key, all=everything)
        reply = self._ask(lambda stub: stub.ClearFailures(request, timeout=timeout))
        return list(reply.keys)

    def prewarm(self, entries: Sequence[tuple[bytes, str]], label: str = "") -> Iterator[pb.PrewarmEvent]:
        """Compile ``(spec JSON, SoC name)`` entries behind foreground work; yields progress to the end.

        The job ends with the iterator. Raises in the middle when the daemon goes away.
        """
        import grpc

        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.PrewarmRequest(entries=_entries(entries), label=label)
        stream = self._ask(lambda stub: stub.Prewarm(request))
        try:
            yield from stream
        except grpc.RpcError as error:
            raise self._translate(error) from None
        finally:
            stream.cancel()

    def environment(self, *, timeout: float = 30) -> Environment:
        """What decides keys on this node."""
        from kaas.proto.environment import Environment
        from kaas.proto.v1 import kernel_service_pb2 as pb

        reply = self._ask(lambda stub: stub.GetEnvironment(pb.GetEnvironmentRequest(), timeout=timeout))
        return msgspec.json.decode(reply.environment_json, type=Environment)

    def coverage(
        self,
        entries: Sequence[Mapping[str, Any]],
        *,
        all_targets: bool = False,
        missing_limit: int = 0,
        coverage: float = 0.0,
        wait_s: float = 0.0,
        timeout: float = 60,
    ) -> pb.GetCoverageResponse:
        """Which kernels the node holds; ``entries`` have the fields of CoverageEntry, none: its own manifest.

        Answered at ``coverage``, or after ``wait_s`` seconds; ``timeout`` is what it may take beside that.
        """
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.GetCoverageRequest(
            entries=[pb.CoverageEntry(**entry) for entry in entries],
            all_targets=all_targets,
            missing_limit=missing_limit,
            coverage=coverage,
            wait_s=wait_s,
        )
        reply: pb.GetCoverageResponse = self._ask(
            lambda stub: stub.GetCoverage(request, timeout=timeout + wait_s)
        )
        return reply

    def health(self, service: str = "", *, timeout: float = 5) -> bool:
        """Whether the daemon says that it serves (``""``), or that it is ready (:data:`READINESS`)."""
        from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped,unused-ignore]

        request = health_pb2.HealthCheckRequest(service=service)
        reply = self._on_channel(
            lambda channel: health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout), PATIENCE_S
        )
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def list_leases(self, key: str = "", *, timeout: float = 30, **paging: Any) -> pb.ListLeasesResponse:
        """One page of the kernels that live processes hold."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.ListLeasesRequest(key=key, **paging)
        reply: pb.ListLeasesResponse = self._ask_store(lambda stub: stub.ListLeases(request, timeout=timeout))
        return reply

    def list_pins(self, *, timeout: float = 30, **paging: Any) -> pb.ListPinsResponse:
        """One page of pins."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.ListPinsRequest(**paging)
        reply: pb.ListPinsResponse = self._ask_store(lambda stub: stub.ListPins(request, timeout=timeout))
        return reply

    def pin(
        self,
        keys: Sequence[str],
        entries: Sequence[tuple[bytes, str]],
        reason: str,
        expires_s: float = 0.0,
        *,
        timeout: float = 60,
    ) -> pb.PinResponse:
        """Keep kernels, by key or ``(spec JSON, SoC name)``, from eviction; 0 s: until they are unpinned."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.PinRequest(keys=keys, entries=_entries(entries), reason=reason, expires_s=expires_s)
        reply: pb.PinResponse = self._ask_store(lambda stub: stub.Pin(request, timeout=timeout))
        return reply

    def unpin(
        self, keys: Sequence[str], entries: Sequence[tuple[bytes, str]], *, timeout: float = 60
    ) -> list[str]:
        """Let go of pins; the keys that had one."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.UnpinRequest(keys=keys, entries=_entries(entries))
        reply = self._ask_store(lambda stub: stub.Unpin(request, timeout=timeout))
        return list(reply.keys)

    def users(self, key: str, *, timeout: float = 60) -> pb.ListUsersResponse:
        """Who uses a kernel or used it."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.ListUsersRequest(key=key)
        reply: pb.ListUsersResponse = self._ask_store(lambda stub: stub.ListUsers(request, timeout=timeout))
        return reply

    def quarantine(self, key: str, reason: str, *, timeout: float = 60) -> pb.QuarantineResponse:
        """Take a kernel out of service."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.QuarantineRequest(key=key, reason=reason)
        reply: pb.QuarantineResponse = self._ask_store(lambda stub: stub.Quarantine(request, timeout=timeout))
        return reply

    def audit(self, key: str, event: str, limit: int, *, timeout: float = 60) -> list[dict[str, Any]]:
        """The end of the audit log, newest first."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.ListAuditRequest(key=key, event=event, limit=limit)
        reply = self._ask_store(lambda stub: stub.ListAudit(request, timeout=timeout))
        return [msgspec.json.decode(record.record_json) for record in reply.records]

    def usage(self, *, timeout: float = 30) -> dict[str, Any]:
        """What the store takes, its limits, and what is held, pinned or waiting in memory."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        reply = self._ask_store(lambda stub: stub.GetUsage(pb.GetUsageRequest(), timeout=timeout))
        usage: dict[str, Any] = msgspec.json.decode(reply.usage_json)
        return usage

    def scrub(self, *, start: bool, timeout: float = 30) -> pb.ScrubResponse:
        """How far the check of all artifacts is; ``start`` begins one."""
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.ScrubRequest(start=start)
        reply: pb.ScrubResponse = self._ask_store(lambda stub: stub.Scrub(request, timeout=timeout))
        return reply

    def import_kernels(
        self, kernels: Sequence[tuple[str, str, str, str]], *, timeout: float = 600
    ) -> tuple[int, int]:
        """Have artifacts published: (key, SHA-256, signatures, name in staging or nothing to ask whether).

        How many were added, and how many were there before.
        """
        from kaas.proto.v1 import kernel_service_pb2 as pb

        request = pb.ImportKernelsRequest(
            kernels=[
                pb.ForeignKernel(key=key, sha256=digest, signatures=signatures, file=file)
                for key, digest, signatures, file in kernels
            ]
        )
        reply = self._ask_store(lambda stub: stub.ImportKernels(request, timeout=timeout))
        return reply.added, reply.present

    def _ask_store(self, call: Callable[[Any], Reply]) -> Reply:
        """One call of the store service on a live daemon, errors translated."""
        from kaas.proto.v1 import kernel_service_pb2_grpc

        stub = kernel_service_pb2_grpc.StoreServiceStub
        return self._on_channel(lambda channel: call(stub(channel)), PATIENCE_S)  # type: ignore[no-untyped-call]


def _request(
    spec_json: bytes, soc_name: str, strict: bool, inline_artifact: bool, priority: Priority
) -> pb.GetKernelRequest:
    from kaas.proto.v1 import kernel_service_pb2 as pb

    return pb.GetKernelRequest(
        spec_json=spec_json,
        soc_name=soc_name,
        priority=f"PRIORITY_{priority.upper()}",
        strict=strict,
        inline_artifact=inline_artifact,
        client=_identity(),
    )


def _entries(entries: Sequence[tuple[bytes, str]]) -> list[pb.PrewarmEntry]:
    from kaas.proto.v1 import kernel_service_pb2 as pb

    return [pb.PrewarmEntry(spec_json=spec, soc_name=soc) for spec, soc in entries]


_links: weakref.WeakSet[DaemonLink] = weakref.WeakSet()


def _forget_in_child() -> None:
    for link in list(_links):
        link.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)


def _identity() -> pb.ClientIdentity:
    """Who asks, for the daemon's log; launchers' own variables name job and rank."""
    from kaas.proto.v1 import kernel_service_pb2 as pb

    job, rank = job_and_rank()
    return pb.ClientIdentity(pid=os.getpid(), job=job, rank=rank)
