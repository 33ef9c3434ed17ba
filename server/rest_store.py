"""REST routes on the store: leases, pins, users of a kernel, quarantine, audit, usage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from fastapi import FastAPI, Query

import kaas.server.rest_store_models as bodies
from kaas.cache.pins import Pin
from kaas.server.lease_table import Lease
from kaas.server.paging import page_of
from kaas.server.prewarm import PrewarmEntry
from kaas.server.rest_parameters import Key, PageSize, PageToken
from kaas.server.store_service import KernelUser, StoreService

KeyFilter = Annotated[
    str, Query(pattern=r"^([0-9a-f]{6,64})?$", description="a key or its first digits (6 or more)")
]
Event = Literal["", "request", "use", "ended", "evicted", "quarantined", "pinned", "unpinned", "stored"]


def add_store_routes(app: FastAPI, store: StoreService) -> None:
    """What keeps kernels, who uses them, and taking one out of service."""

    @app.get("/v1/leases", tags=["store"])
    async def list_leases(
        key: KeyFilter = "", page_size: PageSize = 100, page_token: PageToken = ""
    ) -> bodies.LeasePageBody:
        """Kernels that live processes hold."""
        page, token, total = page_of(store.leases(key), page_size, page_token)
        return bodies.LeasePageBody(leases=[_lease(one) for one in page], next_page_token=token, total=total)

    @app.get("/v1/pins", tags=["store"])
    async def list_pins(page_size: PageSize = 100, page_token: PageToken = "") -> bodies.PinPageBody:
        """Pins that hold, newest first."""
        page, token, total = page_of(store.pins(), page_size, page_token)
        return bodies.PinPageBody(pins=_pins(store, page), next_page_token=token, total=total)

    @app.post("/v1/pins", tags=["store"])
    async def pin(body: bodies.PinsBody) -> bodies.NewPinsBody:
        """Keep kernels from eviction, in place of pins that they have: all of them, or none."""
        entries = [PrewarmEntry(spec=entry.spec, soc_name=entry.soc_name) for entry in body.entries]
        pins = await store.pin(body.keys, entries, body.reason, body.expires_s)
        return bodies.NewPinsBody(pins=_pins(store, pins))

    @app.delete("/v1/pins/{key}", tags=["store"])
    async def unpin(key: Key) -> bodies.UnpinnedBody:
        """Let go of a pin; no keys when there was none."""
        return bodies.UnpinnedBody(keys=await store.unpin([key], []))

    @app.get("/v1/kernels/{key}/users", tags=["store"])
    async def users(key: Key) -> bodies.UsersBody:
        """Who uses a kernel or used it, as far back as the audit log goes."""
        full, found = await store.users(key)
        return bodies.UsersBody(key=full, users=[_user(one) for one in found])

    @app.post("/v1/kernels/{key}/quarantine", tags=["store"])
    async def quarantine(key: Key, body: bodies.QuarantineBody) -> bodies.QuarantinedBody:
        """Take a kernel out of service: everybody misses it, and it is built anew on request."""
        done = await store.quarantine(key, body.reason)
        return bodies.QuarantinedBody(key=done.key, file=done.file, users=[_user(one) for one in done.users])

    @app.get("/v1/audit", tags=["store"])
    async def audit(
        key: KeyFilter = "", event: Event = "", limit: Annotated[int, Query(ge=1, le=10_000)] = 100
    ) -> bodies.AuditBody:
        """The end of the audit log, newest first."""
        return bodies.AuditBody(records=await store.audit(key, event, limit))

    @app.get("/v1/scrub", tags=["store"])
    async def scrub_state() -> bodies.ScrubBody:
        """How far the check of all artifacts is, or how the last one ended."""
        return bodies.ScrubBody.model_validate(msgspec.to_builtins(store.scrub(start=False)))

    @app.post("/v1/scrub", tags=["store"])
    async def scrub() -> bodies.ScrubBody:
        """Check every artifact now, as fast as the disk allows; damaged ones go into quarantine."""
        return bodies.ScrubBody.model_validate(msgspec.to_builtins(store.scrub(start=True)))

    @app.get("/v1/usage", tags=["store"])
    async def usage() -> bodies.UsageBody:
        """What the store takes and may take."""
        return bodies.UsageBody.model_validate(store.usage())


def _lease(lease: Lease) -> bodies.LeaseBody:
    holder = msgspec.structs.asdict(lease.holder)
    del holder["started"]
    return bodies.LeaseBody.model_validate({**holder, "key": lease.key, "since_unix": lease.since_unix})


def _pins(store: StoreService, pins: Sequence[Pin]) -> list[bodies.PinBody]:
    return [
        bodies.PinBody.model_validate({**msgspec.structs.asdict(pin), "stored": store.is_stored(pin.key)})
        for pin in pins
    ]


def _user(user: KernelUser) -> bodies.UserBody:
    return bodies.UserBody.model_validate(msgspec.structs.asdict(user))
