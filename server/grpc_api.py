"""gRPC: the service over a Unix socket (and TCP if asked), thin over :mod:`kaas.server.service`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import msgspec
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from kaas.kernel_library.family import Family
from kaas.kernel_library.kernel_pages import page_text
from kaas.kernel_library.registry import families, family_named, json_schema
from kaas.proto.canonical import canonical_json
from kaas.proto.errors import InvalidConfig, InvalidRequest
from kaas.proto.v1 import kernel_service_pb2 as pb
from kaas.proto.v1 import kernel_service_pb2_grpc as pb_grpc
from kaas.server import listeners
from kaas.server.catalog import Catalog, KernelFilter, KernelSummary
from kaas.server.coverage import CoverageEntry, Coverages
from kaas.server.kernel_request import KernelRequest, time_to_answer
from kaas.server.listeners import SocketAccess
from kaas.server.negative_results import Failure, NegativeResults
from kaas.server.paging import page_of
from kaas.server.prewarm import PrewarmEntry, PrewarmEvent, PrewarmJobs
from kaas.server.scheduler import Priority
from kaas.server.service import KernelService
from kaas.server.status import ERROR_METADATA_KEY, as_kaas_error, bounded_record_json, grpc_status, json_bytes

MAX_REQUEST_BYTES = 16 << 20
MAX_REPLY_BYTES = 512 << 20
"""Replies carry a whole artifact on request."""

SERVICE_NAME = "kaas.v1.KernelService"
READINESS_NAME = "kaas.ready"
"""Health service that serves while ``/readyz`` does; the unnamed one and the service's own serve at once."""

_OUTCOMES = {
    "hit": pb.OUTCOME_HIT,
    "compiled": pb.OUTCOME_COMPILED,
    "joined": pb.OUTCOME_JOINED,
    "fetched": pb.OUTCOME_FETCHED,
}

_PRIORITIES = {
    pb.PRIORITY_RANK: Priority.RANK,
    pb.PRIORITY_USER: Priority.USER,
    pb.PRIORITY_PREWARM: Priority.PREWARM,
}

Context = grpc.aio.ServicerContext[Any, Any]
Reply = TypeVar("Reply")


class KernelServicer(pb_grpc.KernelServiceServicer):
    """Translates messages to calls and errors to statuses; decides nothing."""

    def __init__(
        self,
        service: KernelService,
        catalog: Catalog,
        jobs: PrewarmJobs,
        failures: NegativeResults,
        coverages: Coverages,
    ) -> None:
        self._coverages = coverages
        self._service = service
        self._catalog = catalog
        self._jobs = jobs
        self._failures = failures

    async def GetKernel(self, request: pb.GetKernelRequest, context: Context) -> pb.GetKernelResponse:
        """Find or compile one kernel within the call's deadline."""

        async def answer() -> pb.GetKernelResponse:
            delivery = await self._service.get_kernel(
                KernelRequest(
                    spec=request.spec_json,
                    soc_name=request.soc_name,
                    priority=_PRIORITIES.get(request.priority, Priority.USER),
                    strict=request.strict,
                    inline=request.inline_artifact,
                    timeout_s=time_to_answer(context.time_remaining()),
                    client=_client(request.client),
                    pid=request.client.pid,
                    job=request.client.job[:64],
                    rank=request.client.rank[:16],
                )
            )
            return pb.GetKernelResponse(
                key=delivery.key,
                outcome=_OUTCOMES[delivery.outcome],
                artifact_path=str(delivery.artifact_path or ""),
                artifact=delivery.artifact or b"",
                compile_seconds=delivery.compile_seconds,
                waited_seconds=delivery.waited_seconds,
                environment_generation=self._service.environment.generation,
            )

        return await guarded(answer, context)

    async def ListKernels(self, request: pb.ListKernelsRequest, context: Context) -> pb.ListKernelsResponse:
        """One page of cached and coming kernels."""

        async def answer() -> pb.ListKernelsResponse:
            page = await self._catalog.page(
                KernelFilter(
                    family=request.family,
                    soc_name=request.soc_name,
                    cann_version=request.cann_version,
                    dtype=request.dtype,
                    state=request.state,
                    text=request.text,
                ),
                page_size=request.page_size or 100,
                page_token=request.page_token,
            )
            return pb.ListKernelsResponse(
                kernels=[_summary(summary) for summary in page.kernels],
                next_page_token=page.next_page_token,
                total=page.total,
            )

        return await guarded(answer, context)

    async def DescribeKernel(
        self, request: pb.DescribeKernelRequest, context: Context
    ) -> pb.DescribeKernelResponse:
        """One cached kernel in full."""

        async def answer() -> pb.DescribeKernelResponse:
            kernel = await self._catalog.describe(request.key)
            return pb.DescribeKernelResponse(
                summary=_summary(kernel.summary),
                passport_json=canonical_json(kernel.passport).decode(),
                launch_json=canonical_json(kernel.launch).decode(),
                choices_json=canonical_json(kernel.choices).decode(),
                source=kernel.source,
                log=kernel.log,
                artifact_path=str(kernel.path or ""),
            )

        return await guarded(answer, context)

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        """Why a spec hits or misses."""

        async def answer() -> pb.ExplainResponse:
            question = self._service.question(request.spec_json, request.soc_name)
            explanation = await self._catalog.explain(question.passport)
            return pb.ExplainResponse(
                key=explanation.key,
                hit=explanation.hit,
                reason=explanation.reason,
                passport_json=canonical_json(question.passport).decode(),
                nearest=[
                    pb.NearArtifact(
                        key=near.key,
                        differences=[
                            pb.FieldDifference(
                                path=difference.path,
                                wanted_json=_json(difference.ours),
                                cached_json=_json(difference.theirs),
                            )
                            for difference in near.differences
                        ],
                    )
                    for near in explanation.nearest
                ],
                failure=self._failure(explanation.failure) if explanation.failure else None,
            )

        return await guarded(answer, context)

    async def Prewarm(self, request: pb.PrewarmRequest, context: Context) -> AsyncIterator[pb.PrewarmEvent]:
        """Run a job and stream its progress; the job belongs to the call and ends with it."""

        async def start() -> str:
            entries = [
                PrewarmEntry(spec=entry.spec_json, soc_name=entry.soc_name) for entry in request.entries
            ]
            return self._jobs.start(entries, request.label).id

        job_id = await guarded(start, context)
        try:
            async for event in self._jobs.get(job_id).follow():
                yield _prewarm_event(event)
        finally:
            self._jobs.cancel(job_id)

    async def ListFailures(
        self, request: pb.ListFailuresRequest, context: Context
    ) -> pb.ListFailuresResponse:
        """One page of remembered failures, newest first."""

        async def answer() -> pb.ListFailuresResponse:
            found = self._failures.of_family(request.family)
            page, token, total = page_of(found, request.page_size or 100, request.page_token)
            return pb.ListFailuresResponse(
                failures=map(self._failure, page), next_page_token=token, total=total
            )

        return await guarded(answer, context)

    async def ClearFailures(
        self, request: pb.ClearFailuresRequest, context: Context
    ) -> pb.ClearFailuresResponse:
        """Forget one remembered failure, or all."""

        async def answer() -> pb.ClearFailuresResponse:
            if request.all == bool(request.key):
                raise InvalidRequest("what to clear is not clear", field="key", legal="a key, or all")
            keys = self._failures.clear_all() if request.all else self._failures.clear(request.key)
            return pb.ClearFailuresResponse(keys=keys)

        return await guarded(answer, context)

    def _failure(self, failure: Failure) -> pb.Failure:
        passport = failure.passport
        return pb.Failure(
            key=failure.key,
            family=failure.family,
            spec_json=canonical_json(passport.spec).decode(),
            soc_name=passport.target.soc_name,
            cann_version=passport.toolchain.cann_version,
            toolchain_kind=passport.toolchain.kind,
            kind=failure.kind,
            attempts=failure.attempts,
            failed_unix=failure.failed_unix,
            expires_unix=failure.expires_unix,
            answered=self._failures.answered(failure.key),
            error_json=_json(failure.error),
        )

    async def GetCoverage(self, request: pb.GetCoverageRequest, context: Context) -> pb.GetCoverageResponse:
        """Which of many kernels are here."""

        async def answer() -> pb.GetCoverageResponse:
            coverage = await self._coverages.ask(
                [
                    CoverageEntry(
                        spec=entry.spec_json,
                        key=entry.key,
                        soc_name=entry.soc_name,
                        cann=entry.cann,
                        weight=entry.weight or 1.0,
                    )
                    for entry in request.entries
                ],
                all_targets=request.all_targets,
                missing_limit=request.missing_limit,
                coverage=request.coverage,
                wait_s=request.wait_s,
            )
            fields = msgspec.structs.asdict(coverage)
            missing = [
                pb.MissingKernel(
                    index=one.index,
                    key=one.key,
                    spec_json=canonical_json(one.spec).decode() if one.spec else "",
                    soc_name=one.soc_name,
                    weight=one.weight,
                    state=one.state,
                    error_json=_json(one.error) if one.error else "",
                )
                for one in coverage.missing
            ]
            return pb.GetCoverageResponse(**{**fields, "missing": missing})

        return await guarded(answer, context)

    async def GetEnvironment(
        self, request: pb.GetEnvironmentRequest, context: Context
    ) -> pb.GetEnvironmentResponse:
        """What decides keys on this node."""
        environment = self._service.environment
        return pb.GetEnvironmentResponse(environment_json=canonical_json(environment).decode())

    async def ListFamilies(
        self, request: pb.ListFamiliesRequest, context: Context
    ) -> pb.ListFamiliesResponse:
        """What can be compiled here."""

        async def answer() -> pb.ListFamiliesResponse:
            names = [family_named(request.name).name] if request.name else sorted(families())
            return pb.ListFamiliesResponse(families=[_family(families()[name]) for name in names])

        return await guarded(answer, context)


async def guarded(answer: Callable[[], Awaitable[Reply]], context: Context) -> Reply:
    """The answer, or the call ended with the error's status and its record."""
    try:
        return await answer()
    except Exception as raised:  # the border of the process: nothing but a status may leave
        error = as_kaas_error(raised)
        await context.abort(
            grpc_status(error),
            error.message[:500].encode("ascii", "backslashreplace").decode(),
            trailing_metadata=((ERROR_METADATA_KEY, bounded_record_json(error)),),
        )


def _client(identity: pb.ClientIdentity) -> str:
    parts = {"pid": identity.pid, "job": identity.job[:64], "rank": identity.rank[:16]}
    return ",".join(f"{name}:{value}" for name, value in parts.items() if value)


def _json(value: Any) -> str:
    return json_bytes(value).decode()


def _summary(summary: KernelSummary) -> pb.KernelSummary:
    fields = msgspec.structs.asdict(summary)
    return pb.KernelSummary(spec_json=canonical_json(fields.pop("spec")).decode(), **fields)


def _family(family: Family) -> pb.Family:
    return pb.Family(
        name=family.name,
        summary=family.summary,
        spec_schema_json=canonical_json(json_schema(family.spec_type)).decode(),
        page=page_text(family),
    )


def _prewarm_event(event: PrewarmEvent) -> pb.PrewarmEvent:
    fields = msgspec.structs.asdict(event)
    outcome, error = fields.pop("outcome"), fields.pop("error")
    return pb.PrewarmEvent(
        outcome=_OUTCOMES[outcome] if outcome else pb.OUTCOME_UNSPECIFIED,
        error_json=_json(error) if error else "",
        **fields,
    )


class GrpcServer:
    """The listening server with its health service."""

    def __init__(
        self, servicer: KernelServicer, store_servicer: pb_grpc.StoreServiceServicer | None = None
    ) -> None:
        self._servicer, self._store_servicer = servicer, store_servicer
        self._health = health.aio.HealthServicer()
        self._path: Path | None = None
        self._access: SocketAccess | None = None
        self._own: tuple[int, int] | None = None
        self._server = self._new_server()
        self._renewed: list[grpc.aio.Server] = []

    def _new_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_send_message_length", MAX_REPLY_BYTES),
                ("grpc.so_reuseport", 0),
            )
        )
        pb_grpc.add_KernelServiceServicer_to_server(self._servicer, server)  # type: ignore[no-untyped-call]
        if self._store_servicer is not None:
            pb_grpc.add_StoreServiceServicer_to_server(self._store_servicer, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        return server

    def bind_unix(self, path: Path, access: SocketAccess) -> None:
        """Listen at ``path``. Raises like :func:`kaas.server.listeners.claimed_socket`."""
        self._bind_unix(self._server, path, access)

    async def renew_unix(self) -> bool:
        """Listen at the socket's path anew if the socket was deleted; whether it was.

        What another process put there is left alone. Raises like :meth:`bind_unix`.
        """
        path, access = self._path, self._access
        if path is None or access is None or os.path.lexists(path):
            return False
        # A started server takes no further ports. The one before goes on for those who are connected to it.
        server = self._new_server()
        self._bind_unix(server, path, access)
        await server.start()
        self._renewed.append(server)
        return True

    def _bind_unix(self, server: grpc.aio.Server, path: Path, access: SocketAccess) -> None:
        with listeners.claimed_socket(path, access, field="socket") as staging:
            self._add_port(server, f"unix:{staging}", "socket", str(path))
        self._path, self._access, self._own = path, access, listeners.identity(path)

    def bind_tcp(self, host: str, port: int) -> int:
        """Listen on TCP; returns the port. Raises :class:`InvalidConfig` when it cannot be bound."""
        name = f"[{host}]" if ":" in host else host
        return self._add_port(self._server, f"{name}:{port}", "tcp_address", f"{host}:{port}")

    def _add_port(self, server: grpc.aio.Server, address: str, field: str, shown: str) -> int:
        with contextlib.suppress(RuntimeError):
            if port := server.add_insecure_port(address):
                return int(port)
        raise InvalidConfig(f"{field}: cannot listen on {shown}", field=field, hint="choose another address")

    async def start(self) -> None:
        """Accept calls; health says serving."""
        await self._server.start()
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._health.set(READINESS_NAME, health_pb2.HealthCheckResponse.NOT_SERVING)

    async def set_ready(self, ready: bool) -> None:
        """Everything behind ``/readyz`` holds, or no longer does."""
        status = health_pb2.HealthCheckResponse
        await self._health.set(READINESS_NAME, status.SERVING if ready else status.NOT_SERVING)

    async def begin_stop(self) -> None:
        """Health says not serving, whatever comes after."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Remove the socket, refuse new calls, end running ones after ``grace_s`` at the latest."""
        if self._path is not None:
            listeners.remove_own(self._path, self._own)
        await asyncio.gather(*(server.stop(grace_s) for server in (self._server, *self._renewed)))
