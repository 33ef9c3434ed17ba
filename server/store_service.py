"""Store service: pins, leases, users of a kernel, quarantine and the audit, for gRPC and REST alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from kaas.cache.pins import Pin
from kaas.cache.store import Store
from kaas.proto.errors import InvalidRequest, KernelNotFound, StoreUnavailable
from kaas.server.audit import EVENTS
from kaas.server.catalog import Catalog
from kaas.server.lease_table import Lease
from kaas.server.prewarm import PrewarmEntry, kernels_of
from kaas.server.process_facts import Liveness, liveness, resident_bytes
from kaas.server.scrubber import Scrubber, ScrubState
from kaas.server.service import KernelService
from kaas.server.store_keeper import StoreKeeper

MAX_KEYS = 20_000
MAX_REASON = 500
MAX_AUDIT = 10_000

Origin = Literal["store", "hit", "compiled", "joined", "fetched", "held"]
_ORIGINS = ("store", "hit", "compiled", "joined", "fetched", "held")


class KernelUser(msgspec.Struct, frozen=True, kw_only=True):
    """A process that took a kernel: where from, since when, and whether it still runs.

    ``ended_unix`` is when one that does not ended; 0: it runs, or nobody noticed.
    """

    pid: int
    uid: int
    user: str
    job: str
    rank: str
    since_unix: float
    origin: Origin
    liveness: Liveness
    session: str
    ended_unix: float = 0.0


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel out of service, its file in the quarantine if it had one, and who goes on with it."""

    key: str
    file: str
    users: list[KernelUser]


class StoreService:
    """What operators do with the store besides looking at kernels."""

    def __init__(
        self,
        service: KernelService,
        store: Store,
        catalog: Catalog,
        keeper: StoreKeeper,
        scrubber: Scrubber,
    ) -> None:
        self._service = service
        self._store = store
        self._catalog = catalog
        self._keeper = keeper
        self._scrubber = scrubber
        self._holdings = catalog.holdings

    def leases(self, key: str = "") -> list[Lease]:
        """Every lease, or those on keys that begin with ``key``; who connected first comes first."""
        return list(self._holdings.leases.leases(_checked_prefix(key)))

    def pins(self) -> list[Pin]:
        """Pins that hold, newest first."""
        return self._holdings.pins.all()

    def is_stored(self, key: str) -> bool:
        """Whether a kernel has a file in the store."""
        return self._store.layout.artifact_path(key).exists()

    async def pin(
        self, keys: Sequence[str], entries: Sequence[PrewarmEntry], reason: str, expires_s: float
    ) -> list[Pin]:
        """Keep kernels, by key or by spec, for ``expires_s`` seconds or (0) until they are unpinned.

        Raises :class:`InvalidRequest`, :class:`InvalidSpec`, :class:`KernelNotFound`, :class:`StoreFull`.
        """
        if not 0 <= expires_s < 1e10:
            raise InvalidRequest(
                f"expires_s is {expires_s}", field="expires_s", legal="seconds from 0 (for ever)"
            )
        wanted = await self._keys(keys, entries)
        expires_unix = time.time() + expires_s if expires_s else 0.0
        pins = await asyncio.to_thread(self._holdings.pins.pin, wanted, reason, expires_unix)
        for pin in pins:
            self._holdings.audit.note(
                "pinned", key=pin.key, reason=pin.reason, expires_unix=pin.expires_unix or None
            )
        return pins

    async def unpin(self, keys: Sequence[str], entries: Sequence[PrewarmEntry]) -> list[str]:
        """Let go of pins; the keys that had one. Raises like :meth:`pin`."""
        wanted = await self._keys(keys, entries)
        gone = await asyncio.to_thread(self._holdings.pins.unpin, wanted)
        for key in gone:
            self._holdings.audit.note("unpinned", key=key)
        return gone

    async def users(self, key: str) -> tuple[str, list[KernelUser]]:
        """The whole key, and who took the kernel, as far back as the audit goes: live ones, then the latest.

        Raises :class:`InvalidRequest` or :class:`KernelNotFound`.
        """
        full = await self._resolve(key)
        held = {lease.holder.session: lease for lease in self._holdings.leases.leases(full)}
        found: dict[str, KernelUser] = {}
        records = await self._holdings.audit.find(key=full)
        ends = _ends(await self._holdings.audit.find(event="ended"))
        for record in records:
            user = _user_of(record, held, ends)
            if user is not None:
                before = found.get(user.session)
                if before is not None:  # it asked, then held
                    user = msgspec.structs.replace(user, since_unix=min(user.since_unix, before.since_unix))
                found[user.session] = user
        for session, lease in held.items():  # whatever the audit does not know (any more)
            found.setdefault(session, _holder(lease))
        # A process with a lease is known better by that than by what it said when it asked.
        leased = {user.pid for user in found.values() if not _is_claim(user)}
        users = [user for user in found.values() if not (_is_claim(user) and user.pid in leased)]
        return full, sorted(users, key=lambda user: (user.liveness != "alive", -user.since_unix))

    async def quarantine(self, key: str, reason: str) -> Quarantined:
        """Take a kernel out of service; it is built anew when somebody asks.

        Raises :class:`InvalidRequest` or :class:`KernelNotFound`.
        """
        reason = reason.strip()
        if not 1 <= len(reason) <= MAX_REASON:
            raise InvalidRequest(
                f"a reason of {len(reason)} characters",
                field="reason",
                legal=f"1 to {MAX_REASON} characters",
            )
        full = await self._catalog.resolve(key)
        was_in_memory = self._holdings.memory.drop(full)
        record = await asyncio.to_thread(self._store.quarantine, full, reason)
        self._catalog.removed(full)
        if record is None:
            if self.is_stored(full):
                raise StoreUnavailable(f"kernel {full} could not be moved away", hint="see the daemon's log")
            if not was_in_memory:
                raise KernelNotFound(f"no cached kernel has the key {full}", key=full)
            self._holdings.audit.note("quarantined", key=full, reason=reason)
        _, users = await self.users(full)
        live = [user for user in users if user.liveness != "ended"]
        return Quarantined(key=full, file=record.file if record else "", users=live)

    async def audit(self, key: str, event: str, limit: int) -> list[dict[str, Any]]:
        """The last ``limit`` records, newest first. Raises :class:`InvalidRequest`."""
        if event and event not in EVENTS:
            raise InvalidRequest(f"no event {event!r}", field="event", legal=EVENTS)
        if not 1 <= limit <= MAX_AUDIT:
            raise InvalidRequest(f"limit is {limit}", field="limit", legal=f"1 to {MAX_AUDIT}")
        records = await self._holdings.audit.find(key=_checked_prefix(key), event=event, limit=limit)
        return records[::-1]

    def scrub(self, start: bool) -> ScrubState:
        """How far the check of all artifacts is; ``start`` begins one, as fast as the disk allows."""
        if start:
            self._scrubber.ask()
        return self._scrubber.state

    def usage(self) -> dict[str, Any]:
        """What the store and the daemon take, the limits, and what is held, pinned, waiting or lost."""
        holdings = self._holdings
        return {
            "used": msgspec.to_builtins(self._store.usage),
            "limits": msgspec.to_builtins(self._store.limits),
            "evicted": self._keeper.evicted,
            "over_limit_but_in_use": self._keeper.is_stuck,
            "in_memory": {
                "kernels": len(holdings.memory),
                "bytes": holdings.memory.size_bytes,
                "dropped": holdings.memory.dropped,
            },
            "leases": {
                "processes": holdings.leases.processes,
                "kernels_held": holdings.leases.count,
                "unrecorded": holdings.leases.unrecorded,
            },
            "pins": len(holdings.pins.all()),
            "audit_lost": holdings.audit.lost,
            "scrub": {
                "passes": self._scrubber.state.passes,
                "checked": self._scrubber.state.checked,
                "damaged": self._scrubber.state.damaged,
            },
            "daemon_resident_bytes": resident_bytes(),
        }

    async def _keys(self, keys: Sequence[str], entries: Sequence[PrewarmEntry]) -> list[str]:
        if not 1 <= len(keys) + len(entries) <= MAX_KEYS:
            raise InvalidRequest(
                f"{len(keys) + len(entries)} kernels are named",
                field="keys",
                legal=f"1 to {MAX_KEYS} keys and entries",
            )
        found = [await self._resolve(key) for key in keys]
        for entry in entries:
            for kernel in kernels_of(entry):
                found.append(self._service.question(kernel.spec, kernel.soc_name).key)
        return found

    async def _resolve(self, key: str) -> str:
        """Like the catalogue, and also kernels that are only in the audit any more."""
        try:
            return await self._catalog.resolve(key)
        except KernelNotFound:
            past = {str(record["key"]) for record in await self._holdings.audit.find(key=key)}
            if len(past) != 1:
                raise
            return past.pop()


def _checked_prefix(key: str) -> str:
    if key and (len(key) > 64 or not len(key) >= 6 or set(key) - set("0123456789abcdef")):
        raise InvalidRequest(f"{key[:80]!r} is no kernel key", field="key", legal="6 to 64 digits 0-9 a-f")
    return key


def _is_claim(user: KernelUser) -> bool:
    return user.session.startswith("asked:")


def _holder(lease: Lease) -> KernelUser:
    holder = lease.holder
    return KernelUser(
        pid=holder.pid,
        uid=holder.uid,
        user=holder.user,
        job=holder.job,
        rank=holder.rank,
        since_unix=lease.since_unix,
        origin="held",
        liveness="alive",
        session=holder.session,
    )


def _ends(records: Sequence[Mapping[str, Any]]) -> dict[Any, float]:
    """When connections ended, by session; and by process (number and start), which may have had several."""
    ends: dict[Any, float] = {}
    for record in records:
        when = record.get("when_unix")
        if isinstance(when, (int, float)):
            ends[str(record.get("session"))] = ends[_process(record)] = float(when)
    return ends


def _process(record: Mapping[str, Any]) -> tuple[str, str]:
    return str(record.get("pid")), str(record.get("started"))


def _user_of(
    record: Mapping[str, Any], held: Mapping[str, Lease], ends: Mapping[Any, float]
) -> KernelUser | None:
    """Who a record speaks of, if it is of somebody who got the kernel. Records are ours, but from a file."""
    event, pid = record.get("event"), record.get("pid", 0)
    origin = record.get("origin" if event == "use" else "outcome")
    if event not in ("use", "request") or not isinstance(pid, int) or origin not in _ORIGINS:
        return None
    if event == "request" and not pid:
        return None
    started, session = record.get("started", 0), str(record.get("session", f"asked:{pid}"))
    state: Liveness = "unknown"
    if session in held:
        state = "alive"
    elif event == "use" and isinstance(started, int):
        state = liveness(pid, started)
    # Its last connection's end; records of older daemons name none but that of the one it took this by.
    ended = ends.get(_process(record), ends.get(session, 0.0)) if state == "ended" else 0.0
    uid, when = record.get("uid", -1), record.get("when_unix", 0.0)
    return KernelUser(
        pid=pid,
        uid=uid if isinstance(uid, int) else -1,
        user=str(record.get("user", "")),
        job=str(record.get("job", "")),
        rank=str(record.get("rank", "")),
        since_unix=float(when) if isinstance(when, (int, float)) else 0.0,
        origin=origin,
        liveness=state,
        session=session,
        ended_unix=ended,
    )
