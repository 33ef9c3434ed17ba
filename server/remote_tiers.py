"""Remote tiers: kernels of other nodes are read on a miss, kernels compiled here are written for them.

Tiers are asked in their order, each within its deadline, and one that failed often is left alone for a while
(:mod:`kaas.cache.remote_breaker`). What comes back is a foreign artifact: every byte, its passport and its
signature are checked before anybody sees it, and what is refused is a miss. A kernel found in a later tier is
written to the earlier ones. A hit in this node's own store never comes here.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kaas.cache.artifact import read_artifact_file
from kaas.cache.foreign_artifact import Verified, verify_foreign
from kaas.cache.quarantine import is_quarantined
from kaas.cache.remote_breaker import Breaker
from kaas.cache.remote_names import MAX_SIGNATURES_BYTES, artifact_name, signatures_name
from kaas.cache.remote_settings import RemoteTierSettings
from kaas.cache.remote_storage import ObjectTooLarge, RemoteStorage, RemoteTrouble
from kaas.cache.signatures import SignaturePolicy, SigningKey
from kaas.cache.store import Store
from kaas.proto.errors import ArtifactDamaged, KaasError, RemoteUnavailable, SignatureRefused
from kaas.proto.log_facts import facts
from kaas.proto.passport import KernelKey

log = logging.getLogger(__name__)

WRITES_WAITING = 10_000
"""Kernels that wait to be written, at most; beyond that the oldest are given up."""

WRITE_ATTEMPTS = 6
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
CONFIRMED_KEPT = 100_000
"""Keys known to be in a tier, at most, so that a pre-warm need not ask again."""


class RemoteKernel(NamedTuple):
    """A verified kernel from the tier with that name."""

    encoded: bytes
    verified: Verified
    tier: str


class RemoteTierReport(msgspec.Struct, frozen=True, kw_only=True):
    """How one tier does: the breaker's state, what came of the calls so far, the last trouble."""

    name: str
    uri: str
    mode: str
    state: str
    next_try_s: float
    times_opened: int
    results: dict[str, int]
    trouble: str


class _Tier:
    """One tier: its storage behind a deadline and a breaker."""

    def __init__(self, settings: RemoteTierSettings, storage: RemoteStorage) -> None:
        self.settings = settings
        self.storage = storage
        self.breaker = Breaker(open_after=settings.open_after, open_s=settings.open_s)
        self.results: Counter[str] = Counter()
        self.trouble = ""
        self.confirmed: set[str] = set()
        self.refused: set[str] = set()

    async def read(self, key: str, with_signatures: bool) -> tuple[bytes, str] | None:
        """An artifact as it lies there, not checked, and its signatures; ``None`` for whatever reason."""
        if not self.breaker.allows():
            self.results["skipped"] += 1
            return None
        try:
            async with asyncio.timeout(self.settings.deadline_s):
                encoded = await self.storage.read(artifact_name(key), self.settings.max_object_bytes)
                signatures = b""
                if encoded is not None and with_signatures:
                    name = signatures_name(key, hashlib.sha256(encoded).hexdigest())
                    signatures = await self.storage.read(name, MAX_SIGNATURES_BYTES) or b""
        except ObjectTooLarge:
            self.breaker.succeeded()
            self.refuse(key, f"it has more than {self.settings.max_object_bytes} bytes")
            return None
        except (RemoteTrouble, TimeoutError) as error:
            self._failed("read", error, self.settings.deadline_s)
            return None
        except BaseException:
            self.breaker.withdrew()
            raise
        self.breaker.succeeded()
        self.results["miss" if encoded is None else "found"] += 1
        return None if encoded is None else (encoded, signatures.decode("ascii", "replace"))

    async def write(self, key: str, encoded: bytes, signatures: str) -> None:
        """Have the kernel there, unless it is. Raises :class:`RemoteUnavailable`."""
        if key in self.confirmed:
            return
        if not self.breaker.allows():
            self.results["write_skipped"] += 1
            raise self.unavailable(
                key, f"it failed before and is left alone for {self.breaker.opens_in_s:.0f} s"
            )
        try:
            async with asyncio.timeout(self.settings.write_deadline_s):
                is_there = key not in self.refused and await self.storage.size(artifact_name(key)) is not None
                if not is_there:
                    if signatures:  # first: who finds the artifact finds them, too
                        name = signatures_name(key, hashlib.sha256(encoded).hexdigest())
                        await self.storage.write(name, signatures.encode())
                    await self.storage.write(artifact_name(key), encoded)
        except (RemoteTrouble, TimeoutError) as error:
            raise self.unavailable(
                key, self._failed("write", error, self.settings.write_deadline_s)
            ) from None
        except BaseException:
            self.breaker.withdrew()
            raise
        self.breaker.succeeded()
        self.refused.discard(key)
        self.confirm(key)
        self.results["present" if is_there else "written"] += 1

    def confirm(self, key: str) -> None:
        """The kernel is there, verified or written by us."""
        if len(self.confirmed) >= CONFIRMED_KEPT:
            self.confirmed.clear()
        self.confirmed.add(key)

    def refuse(self, key: str, reason: str) -> None:
        """What lies there is no such kernel: it is a miss, and is replaced by the next write."""
        self.results["refused"] += 1
        self.refused.add(key)
        self.confirmed.discard(key)
        log.warning(
            "a kernel of a remote tier is refused: %s",
            reason,
            extra=facts(tier=self.settings.name, key=key[:12]),
        )

    def report(self) -> RemoteTierReport:
        """For people and metrics."""
        return RemoteTierReport(
            name=self.settings.name,
            uri=self.settings.uri,
            mode=self.settings.mode,
            state=self.breaker.state,
            next_try_s=round(self.breaker.opens_in_s, 1),
            times_opened=self.breaker.times_opened,
            results=dict(self.results),
            trouble=self.trouble,
        )

    def _failed(self, what: str, error: Exception, deadline_s: float) -> str:
        is_late = isinstance(error, TimeoutError)
        self.trouble = f"no answer within {deadline_s:g} s" if is_late else str(error)
        self.results[f"{what}_{'late' if is_late else 'failed'}"] += 1
        opened_before = self.breaker.times_opened
        self.breaker.failed()
        if self.breaker.times_opened > opened_before:
            log.warning(
                "a remote tier is left alone for %g s: %s",
                self.settings.open_s,
                self.trouble,
                extra=facts(tier=self.settings.name),
            )
        return self.trouble

    def unavailable(self, key: str, problem: str) -> RemoteUnavailable:
        """That the kernel could not be written, and why."""
        name = self.settings.name
        return RemoteUnavailable(
            f"kernel {key[:12]} could not be written to the remote tier {name!r}: {problem}",
            tier=name,
            key=key,
        )


class _Write(NamedTuple):
    """A kernel that waits to be written, and to which tiers."""

    key: KernelKey
    tiers: tuple[_Tier, ...]
    attempt: int
    due: float


class RemoteTiers:
    """All tiers of a node. Without any, every call is cheap and finds nothing.

    ``signing_key`` signs what this node writes; a kernel that came signed is passed on with its signatures.
    """

    def __init__(
        self,
        tiers: Sequence[RemoteTierSettings],
        store: Store,
        policy: SignaturePolicy,
        signing_key: SigningKey | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        opened: Callable[[RemoteTierSettings, Mapping[str, str] | None], RemoteStorage] = RemoteStorage.open,
    ) -> None:
        """Raises :class:`InvalidConfig` for a tier that cannot be opened."""
        self._tiers = [_Tier(settings, opened(settings, environ)) for settings in tiers]
        self._store = store
        self._policy = policy
        self._signing_key = signing_key
        self._signatures: dict[str, str] = {}
        self._writes: list[_Write] = []
        self._news = asyncio.Event()
        self.given_up = 0
        """Kernels that were not written after all attempts, or for want of room among those that wait."""

    def __bool__(self) -> bool:
        return bool(self._tiers)

    @property
    def waiting(self) -> int:
        """Kernels that are still to be written."""
        return len(self._writes)

    def reports(self) -> list[RemoteTierReport]:
        """One of each tier, in their order."""
        return [tier.report() for tier in self._tiers]

    async def find(self, key: KernelKey) -> RemoteKernel | None:
        """The kernel from the first tier that has it and stands up to every check; trouble is a miss."""
        missed: list[_Tier] = []
        needs_signatures = self._policy.trust is not None
        for tier in self._tiers:
            if not tier.settings.is_readable:
                continue
            found = await tier.read(key, needs_signatures)
            if found is None:
                missed.append(tier)
                continue
            encoded, signatures = found
            try:
                verified = await asyncio.to_thread(self._verified, key, encoded, signatures, tier)
            except (ArtifactDamaged, SignatureRefused) as refusal:
                tier.refuse(key, refusal.message)
                missed.append(tier)
                continue
            tier.confirm(key)
            if signatures:
                self._signatures[key] = signatures
            log.info("remote hit", extra=facts(tier=tier.settings.name, key=key[:12]))
            self._offer(key, [one for one in missed if one.settings.is_writable])
            return RemoteKernel(encoded, verified, tier.settings.name)
        return None

    def offer(self, key: KernelKey) -> None:
        """Write a stored kernel to every tier that takes it, when there is time."""
        self._offer(key, [tier for tier in self._tiers if tier.settings.is_writable])

    async def confirm(self, key: KernelKey) -> None:
        """Return once each writable tier has the stored kernel.

        Raises :class:`RemoteUnavailable` for the first that fails and whose ``on_error`` is ``fail``; those
        that ignore it get the kernel later.
        """
        writable = [tier for tier in self._tiers if tier.settings.is_writable and key not in tier.confirmed]
        if not writable:
            return
        encoded = await self._stored_bytes(key)
        signatures = "" if encoded is None else self._signed(key, encoded)
        refusals: list[RemoteUnavailable] = []
        for tier in writable:
            try:
                if encoded is None:
                    raise tier.unavailable(key, "the store does not hold it (any more)")
                await tier.write(key, encoded, signatures)
            except RemoteUnavailable as refusal:
                if tier.settings.on_error == "fail":
                    refusals.append(refusal)
                else:
                    self._offer(key, [tier])
        if refusals:
            raise refusals[0]

    async def run(self) -> None:
        """Write what is offered, until cancelled."""
        while True:
            while self._writes and self._writes[0].due <= time.monotonic():
                await self._write_first()
            self._news.clear()
            pause_s = self._writes[0].due - time.monotonic() if self._writes else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if pause_s is None else max(0.0, pause_s)):
                    await self._news.wait()

    async def drain(self, within_s: float) -> int:
        """Write what waits, once each and only for so long; how many kernels stay unwritten."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for _ in range(len(self._writes)):
                    await self._write_first(is_last=True)
        return len(self._writes)

    def _verified(self, key: KernelKey, encoded: bytes, signatures: str, tier: _Tier) -> Verified:
        origin = f"{tier.settings.name}:{artifact_name(key)}"
        verified = verify_foreign(encoded, key=key, signatures=signatures, policy=self._policy, origin=origin)
        if is_quarantined(self._store.layout, key, encoded):
            raise ArtifactDamaged(f"{origin}: this very artifact is in quarantine here", part="file")
        return verified

    def _offer(self, key: KernelKey, tiers: Sequence[_Tier]) -> None:
        wanted = tuple(tier for tier in tiers if key not in tier.confirmed)
        if not wanted:
            return
        if len(self._writes) >= WRITES_WAITING:
            self._writes.pop()  # what failed most often waits longest
            self.given_up += 1
        self._put(_Write(key, wanted, 1, time.monotonic()))

    def _put(self, write: _Write) -> None:
        bisect.insort(self._writes, write, key=lambda waiting: waiting.due)
        self._news.set()

    async def _write_first(self, *, is_last: bool = False) -> None:
        """It keeps its place until it is written: who stops meanwhile still has it."""
        write = self._writes[0]
        await self._write(write._replace(attempt=WRITE_ATTEMPTS) if is_last else write)
        with contextlib.suppress(ValueError):
            self._writes.remove(write)

    async def _write(self, write: _Write) -> None:
        try:
            encoded = await self._stored_bytes(write.key)
        except KaasError as error:
            log.warning("a kernel cannot be read, and is not written: %s", error)
            encoded = None
        if encoded is None:
            return  # evicted, or set apart as damaged: nothing that others should have
        signatures = self._signed(write.key, encoded)
        failed: list[_Tier] = []
        for tier in write.tiers:
            try:
                await tier.write(write.key, encoded, signatures)
            except RemoteUnavailable as refusal:
                log.warning("%s", refusal.message)
                failed.append(tier)
        if not failed:
            return
        if write.attempt >= WRITE_ATTEMPTS:
            self.given_up += 1
            return
        pause_s = min(FIRST_RETRY_S * 2 ** (write.attempt - 1), LAST_RETRY_S)
        pause_s = max(pause_s, *(tier.breaker.opens_in_s for tier in failed))
        self._put(_Write(write.key, tuple(failed), write.attempt + 1, time.monotonic() + pause_s))

    async def _stored_bytes(self, key: KernelKey) -> bytes | None:
        return await asyncio.to_thread(_verified_file, self._store.layout.artifact_path(key), key)

    def _signed(self, key: KernelKey, encoded: bytes) -> str:
        if self._signing_key is not None:
            return self._signing_key.sign(key, hashlib.sha256(encoded).hexdigest())
        return self._signatures.get(key, "")


def _verified_file(path: Path, key: KernelKey) -> bytes | None:
    """A stored artifact that is whole; what is damaged is the store's affair."""
    try:
        encoded = read_artifact_file(str(path))
        verify_foreign(encoded, key=key)
    except (FileNotFoundError, ArtifactDamaged):
        return None
    return encoded
