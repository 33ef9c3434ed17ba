"""gRPC: leases, pins, users, quarantine and audit, thin over :mod:`kaas.server.store_service`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kaas.cache.pins import Pin as StoredPin
from kaas.proto.v1 import kernel_service_pb2 as pb
from kaas.proto.v1 import kernel_service_pb2_grpc as pb_grpc
from kaas.server.foreign_kernels import ForeignKernel, ForeignKernels
from kaas.server.grpc_api import Context, guarded
from kaas.server.lease_table import Lease
from kaas.server.paging import page_of
from kaas.server.prewarm import PrewarmEntry
from kaas.server.status import json_bytes
from kaas.server.store_service import KernelUser, StoreService

_LIVENESS = {
    "alive": pb.LIVENESS_ALIVE,
    "ended": pb.LIVENESS_ENDED,
    "unknown": pb.LIVENESS_UNSPECIFIED,
}
_NO_UID = 0xFFFFFFFF
"""What the operating system, too, says for: no user."""


class StoreServicer(pb_grpc.StoreServiceServicer):
    """Translates messages to calls and errors to statuses; decides nothing."""

    def __init__(self, store: StoreService, foreign: ForeignKernels) -> None:
        self._store = store
        self._foreign = foreign

    async def ListLeases(self, request: pb.ListLeasesRequest, context: Context) -> pb.ListLeasesResponse:
        """One page of live processes' kernels."""

        async def answer() -> pb.ListLeasesResponse:
            page, token, total = page_of(
                self._store.leases(request.key), request.page_size or 100, request.page_token
            )
            return pb.ListLeasesResponse(leases=map(_lease, page), next_page_token=token, total=total)

        return await guarded(answer, context)

    async def ListPins(self, request: pb.ListPinsRequest, context: Context) -> pb.ListPinsResponse:
        """One page of pins."""

        async def answer() -> pb.ListPinsResponse:
            page, token, total = page_of(self._store.pins(), request.page_size or 100, request.page_token)
            return pb.ListPinsResponse(pins=self._pins(page), next_page_token=token, total=total)

        return await guarded(answer, context)

    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinResponse:
        """Keep kernels."""

        async def answer() -> pb.PinResponse:
            pins = await self._store.pin(
                list(request.keys), _entries(request.entries), request.reason, request.expires_s
            )
            return pb.PinResponse(pins=self._pins(pins))

        return await guarded(answer, context)

    async def Unpin(self, request: pb.UnpinRequest, context: Context) -> pb.UnpinResponse:
        """Let go of pins."""

        async def answer() -> pb.UnpinResponse:
            keys = await self._store.unpin(list(request.keys), _entries(request.entries))
            return pb.UnpinResponse(keys=keys)

        return await guarded(answer, context)

    async def ListUsers(self, request: pb.ListUsersRequest, context: Context) -> pb.ListUsersResponse:
        """Who uses or used a kernel."""

        async def answer() -> pb.ListUsersResponse:
            key, users = await self._store.users(request.key)
            return pb.ListUsersResponse(key=key, users=map(_user, users))

        return await guarded(answer, context)

    async def Quarantine(self, request: pb.QuarantineRequest, context: Context) -> pb.QuarantineResponse:
        """Take a kernel out of service."""

        async def answer() -> pb.QuarantineResponse:
            done = await self._store.quarantine(request.key, request.reason)
            return pb.QuarantineResponse(key=done.key, file=done.file, users=map(_user, done.users))

        return await guarded(answer, context)

    async def ListAudit(self, request: pb.ListAuditRequest, context: Context) -> pb.ListAuditResponse:
        """The end of the audit log."""

        async def answer() -> pb.ListAuditResponse:
            records = await self._store.audit(request.key, request.event, request.limit or 100)
            return pb.ListAuditResponse(
                records=[
                    pb.AuditRecord(
                        when_unix=float(record.get("when_unix", 0.0)),
                        event=str(record.get("event", "")),
                        key=str(record.get("key", "")),
                        record_json=json_bytes(record).decode(),
                    )
                    for record in records
                ]
            )

        return await guarded(answer, context)

    async def GetUsage(self, request: pb.GetUsageRequest, context: Context) -> pb.GetUsageResponse:
        """What the store takes and holds."""

        async def answer() -> pb.GetUsageResponse:
            return pb.GetUsageResponse(usage_json=json_bytes(self._store.usage()).decode())

        return await guarded(answer, context)

    async def Scrub(self, request: pb.ScrubRequest, context: Context) -> pb.ScrubResponse:
        """The check of all artifacts."""

        async def answer() -> pb.ScrubResponse:
            state = msgspec.structs.asdict(self._store.scrub(request.start))
            skipped = [pb.SkippedDirectory(path=one.path, reason=one.reason) for one in state.pop("skipped")]
            return pb.ScrubResponse(**state, skipped=skipped)

        return await guarded(answer, context)

    async def ImportKernels(
        self, request: pb.ImportKernelsRequest, context: Context
    ) -> pb.ImportKernelsResponse:
        """Publish artifacts of another node."""

        async def answer() -> pb.ImportKernelsResponse:
            kernels = [
                ForeignKernel(key=one.key, sha256=one.sha256, signatures=one.signatures, file=one.file)
                for one in request.kernels
            ]
            added, present = await self._foreign.publish(kernels)
            return pb.ImportKernelsResponse(added=added, present=present)

        return await guarded(answer, context)

    def _pins(self, pins: Sequence[StoredPin]) -> list[pb.PinRecord]:
        return [
            pb.PinRecord(
                key=pin.key,
                reason=pin.reason,
                since_unix=pin.since_unix,
                expires_unix=pin.expires_unix,
                stored=self._store.is_stored(pin.key),
            )
            for pin in pins
        ]


def _entries(entries: Iterable[pb.PrewarmEntry]) -> list[PrewarmEntry]:
    return [PrewarmEntry(spec=entry.spec_json, soc_name=entry.soc_name) for entry in entries]


def _lease(lease: Lease) -> pb.Lease:
    holder = lease.holder
    return pb.Lease(
        key=lease.key,
        pid=max(0, holder.pid),
        uid=holder.uid & _NO_UID,
        user=holder.user,
        job=holder.job,
        rank=holder.rank,
        since_unix=lease.since_unix,
        session=holder.session,
    )


def _user(user: KernelUser) -> pb.KernelUser:
    return pb.KernelUser(
        pid=max(0, user.pid),
        uid=user.uid & _NO_UID,
        user=user.user,
        job=user.job,
        rank=user.rank,
        since_unix=user.since_unix,
        origin=user.origin,
        liveness=_LIVENESS[user.liveness],
        session=user.session,
        ended_unix=user.ended_unix,
    )
