"""Service: the main path of the daemon, from a request to a kernel in the store.

The only module that joins compiler and cache. Transports call it and decide nothing themselves.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kaas.cache.artifact import Artifact, encode_artifact
from kaas.cache.environment_file import publish_environment, read_environment
from kaas.cache.memory_tier import MemoryKernel
from kaas.cache.store import Store
from kaas.compiler.job import CompileJob, CompileLimits, CompileOutput
from kaas.compiler.pool import CompilerPool
from kaas.kernel_library.registry import parse_spec
from kaas.kernel_library.targets import target_named
from kaas.proto.environment import Environment
from kaas.proto.errors import (
    ArtifactDamaged,
    CompileOutOfMemory,
    KaasError,
    PermissionDenied,
    StoreFull,
    StoreUnavailable,
    StrictMiss,
)
from kaas.proto.log_facts import facts
from kaas.proto.passport import KernelKey
from kaas.server.catalog import Catalog, Explanation, summarize_passport
from kaas.server.compile_costs import CompileCosts
from kaas.server.kernel_request import Delivery, Kernel, KernelRequest, Outcome, Question
from kaas.server.negative_results import NegativeResults
from kaas.server.prewarm import PrewarmEntry
from kaas.server.remote_tiers import RemoteTiers
from kaas.server.scheduler import Priority, Scheduler

log = logging.getLogger(__name__)

NAMED = 10
"""Differences of the nearest kernel that a strict miss tells."""

READS = 5
"""How often a kernel may be evicted or damaged between finding and reading it before that is an error."""


class KernelService:
    """Finds or compiles kernels for this node's environment."""

    def __init__(
        self,
        *,
        environment: Environment,
        store: Store,
        catalog: Catalog,
        pool: CompilerPool,
        scheduler: Scheduler[Kernel],
        limits: CompileLimits,
        failures: NegativeResults,
        costs: CompileCosts,
        remote: RemoteTiers | None = None,
    ) -> None:
        self.environment = environment
        self._store = store
        self._catalog = catalog
        self._pool = pool
        self._scheduler = scheduler
        self._limits = limits
        self._failures = failures
        self._costs = costs
        self._remote = remote
        self._fetches: dict[str, asyncio.Task[Kernel | None]] = {}
        self._holdings = catalog.holdings
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """Requests that ended, by outcome (or error code) and priority."""

    def question(self, spec: bytes | Mapping[str, Any], soc_name: str = "") -> Question:
        """Check spec and target and compute the key. Raises :class:`InvalidSpec` or UnsupportedTarget."""
        parsed = parse_spec(spec)
        own = self.environment.target
        target = (
            own if soc_name.strip().casefold() in ("", own.soc_name.casefold()) else target_named(soc_name)
        )
        parsed.check_target(target)
        passport = self.environment.passport(parsed.to_record(), target)
        return Question(spec=parsed, target=target, passport=passport, key=passport.key())

    async def get_kernel(self, request: KernelRequest) -> Delivery:
        """Find the kernel in the store, or compile it (with everybody else who asks for it)."""
        started = time.monotonic()
        family, key, outcome, why = "", "", "refused", ""
        try:
            question = self.question(request.spec, request.soc_name)
            family, key = question.spec.family, question.key
            kernel, found, content = await self._find_with_bytes(question, request)
            outcome, why = found, kernel.why_absent
            return Delivery(
                key=question.key,
                outcome=found,
                artifact_path=kernel.path,
                artifact=content,
                compile_seconds=kernel.compile_seconds,
                waited_seconds=time.monotonic() - started,
            )
        except BaseException as error:
            outcome = error.code if isinstance(error, KaasError) else type(error).__name__
            why = error.message if isinstance(error, KaasError) else ""
            raise
        finally:
            taken_ms = round(1000 * (time.monotonic() - started), 1)
            self.outcomes[outcome, request.priority.name.lower()] += 1
            log.info(
                "kernel",
                extra=facts(
                    key=key[:12],
                    family=family,
                    outcome=outcome,
                    ms=taken_ms,
                    priority=request.priority.name.lower(),
                    client=request.client,
                ),
            )
            self._holdings.audit.note(
                "request",
                key=key,
                family=family,
                outcome=outcome,
                why=why,
                ms=taken_ms,
                priority=request.priority.name.lower(),
                pid=request.pid or None,
                job=request.job,
                rank=request.rank,
            )

    async def warm(self, entry: PrewarmEntry) -> tuple[str, Outcome]:
        """One entry of a pre-warm job: behind foreground work, however long it takes.

        With remote tiers it is ready once they have it, too. Raises :class:`RemoteUnavailable` for one that
        fails and may not be ignored; the kernel is in the store all the same.
        """
        request = KernelRequest(spec=entry.spec, soc_name=entry.soc_name, priority=Priority.PREWARM)
        delivery = await self.get_kernel(request)
        if self._remote:
            await self._remote.confirm(delivery.key)
        return delivery.key, delivery.outcome

    async def _find_with_bytes(
        self, question: Question, request: KernelRequest
    ) -> tuple[Kernel, Outcome, bytes | None]:
        """The kernel, with its bytes if they are wanted or not in the store; one that goes away between
        finding and reading is found, or made, again."""
        for _ in range(READS):
            kernel, found = await self._find_or_compile(question, request)
            if kernel.path is None or not request.inline:
                return kernel, found, kernel.encoded
            content = await asyncio.to_thread(_verified_bytes, kernel.path, question.key)
            if content is not None:
                return kernel, found, content
        raise StoreUnavailable(f"{kernel.path} went away {READS} times while it was read")

    async def _find_or_compile(self, question: Question, request: KernelRequest) -> tuple[Kernel, Outcome]:
        stored = await self._load(question.key) or self._recall(question.key)
        if stored is not None:
            return stored, "hit"
        began = time.monotonic()
        fetched = await self._fetch(question, request.timeout_s)
        if fetched is not None:
            return fetched, "fetched"
        if request.strict:
            explanation = await self._catalog.explain(question.passport)
            raise StrictMiss(
                f"strict mode: {explanation.reason}",
                hint="pre-warm it, or ask without strict",
                key=question.key,
                spec=question.spec.to_record(),
                nearest=_nearest(explanation),
            )
        self._failures.answer(question.key)
        if request.priority < Priority.PREWARM:
            self._pool.hurry(question.key)  # in case it is compiled behind everybody else
        landing = await self._scheduler.run(
            question.key,
            functools.partial(self._build, question),
            priority=request.priority,
            timeout_s=None if request.timeout_s is None else request.timeout_s - (time.monotonic() - began),
            family=question.spec.family,
            subject=question.passport,
            on_failure=functools.partial(self._remember, question),
        )
        if landing.joined:
            return landing.value, "joined"
        return landing.value, "compiled" if landing.value.was_compiled else "hit"

    async def _fetch(self, question: Question, timeout_s: float | None) -> Kernel | None:
        """The kernel from a remote tier, stored here; ``None`` also when there is no time left to look.

        All who miss one kernel at a time share one look.
        """
        key = question.key
        if not self._remote or self._scheduler.priority_of(key) is not None:
            return None  # who compiles it has looked
        fetch = self._fetches.get(key)
        if fetch is None:
            fetch = asyncio.create_task(self._fetch_and_store(question), name=f"fetch {key[:12]}")
            self._fetches[key] = fetch
            fetch.add_done_callback(lambda _: self._fetches.pop(key, None))
        done, _ = await asyncio.wait((fetch,), timeout=timeout_s)
        return fetch.result() if done else None

    async def _fetch_and_store(self, question: Question) -> Kernel | None:
        found = None if self._remote is None else await self._remote.find(question.key)
        if found is None:
            return None
        row = {
            **summarize_passport(question.passport),
            "size_bytes": len(found.encoded),
            "created_unix": found.verified.created_unix,
            "compile_seconds": found.verified.compile_seconds,
        }
        path = await self._publish(question.key, found.encoded, row)
        self._holdings.audit.note(
            "stored", key=question.key, origin=f"remote tier {found.tier}", signer=found.verified.signer
        )
        return Kernel(
            path=path,
            encoded=found.encoded if path is None else None,
            compile_seconds=found.verified.compile_seconds,
            was_compiled=False,
            why_absent=f"It came from the remote tier {found.tier!r}.",
        )

    def _remember(self, question: Question, error: KaasError, attempts: int) -> None:
        failure = self._failures.remember(question.passport, error, attempts)
        kind = failure.kind if failure else "passing"
        log.warning(
            "compile failed: %s",
            error.message,
            extra=facts(key=question.key[:12], attempts=attempts, kind=kind),
        )

    async def _load(self, key: KernelKey) -> Kernel | None:
        """The stored kernel, verified; a damaged or unreadable one is a miss."""
        try:
            artifact = await asyncio.to_thread(self._look_up, key)
        except (StoreFull, StoreUnavailable, PermissionDenied) as trouble:
            log.warning("store trouble counts as a miss: %s", trouble, extra=facts(key=key[:12]))
            return None
        if artifact is None:
            return None
        with artifact:
            self._catalog.used(key)
            return Kernel(
                path=self._store.layout.artifact_path(key),
                encoded=None,
                compile_seconds=artifact.compile_seconds,
                was_compiled=False,
            )

    def _recall(self, key: KernelKey) -> Kernel | None:
        """A kernel that waits in memory because the store cannot take it."""
        kept = self._holdings.memory.get(key)
        if kept is None:
            return None
        seconds = kept.row["compile_seconds"]
        return Kernel(path=None, encoded=kept.encoded, compile_seconds=seconds, was_compiled=False)

    def _look_up(self, key: KernelKey) -> Artifact | None:
        artifact = self._store.load(key)
        root = self._store.root
        # Clients find kernels by it when we are down; whoever removed or damaged it must not cost them that.
        if artifact is not None and read_environment(root) != self.environment:
            log.warning("environment.json was lost or changed, and is published again")
            publish_environment(root, self.environment)
        return artifact

    async def _build(self, question: Question) -> Kernel:
        # The kernel may have landed between the caller's look into the store and this flight.
        stored = await self._load(question.key) or self._recall(question.key)
        if stored is not None:
            return stored
        output = await self._compile(question)
        # Only now: it compares with the likest kernels, for which a compile need not wait.
        why_absent = await self._catalog.why_absent(question.passport)
        created_unix = time.time()
        encoded = encode_artifact(
            passport=question.passport,
            launch=output.launch,
            choices=output.choices,
            image=output.image,
            source=output.source,
            log=output.log,
            created_unix=created_unix,
            compile_seconds=output.compile_seconds,
        )
        row = {
            **summarize_passport(question.passport),
            "size_bytes": len(encoded),
            "created_unix": created_unix,
            "compile_seconds": output.compile_seconds,
        }
        path = await self._publish(question.key, encoded, row)
        if path is not None and self._remote:
            self._remote.offer(question.key)
        return Kernel(
            path=path,
            encoded=encoded if path is None else None,
            compile_seconds=output.compile_seconds,
            was_compiled=True,
            why_absent=why_absent,
        )

    async def _compile(self, question: Question) -> CompileOutput:
        job = CompileJob(
            spec=question.passport.spec,
            target=question.target,
            toolkit_home=self.environment.locality.toolkit_home,
            options=self.environment.options,
            limits=self._limits,
            toolchain=self.environment.toolchain,
            generator=question.passport.generator,
            background=self._scheduler.priority_of(question.key) is Priority.PREWARM,
        )
        log.info("compiler start", extra=facts(key=question.key[:12]))
        family = question.spec.family
        try:
            output = await self._pool.compile(job, question.key)
        except CompileOutOfMemory:
            self._costs.learn_shortage(family)
            raise
        self._failures.forget(question.key)
        self._costs.learn(
            family,
            peak_bytes=output.peak_rss_bytes,
            seconds=output.compile_seconds,
            cpu_seconds=output.cpu_seconds,
        )
        return output

    async def _publish(self, key: KernelKey, encoded: bytes, row: dict[str, Any]) -> Path | None:
        """Into the store, or into memory when that cannot take it: the answer is the same."""
        try:
            path = await asyncio.to_thread(self._store.publish, key, encoded)
        except (StoreFull, StoreUnavailable) as refusal:
            log.warning("kernel is served but not stored: %s", refusal, extra=facts(key=key[:12]))
            if self._holdings.memory.put(MemoryKernel(key=key, encoded=encoded, row=row)):
                self._holdings.wanted.arrived(key)
            return None
        else:
            self._catalog.added(row)
            return path
        finally:
            self._holdings.news.set()


def _nearest(explanation: Explanation) -> dict[str, Any] | None:
    """The nearest cached kernel, and in what it differs."""
    if not explanation.nearest:
        return None
    near = explanation.nearest[0]
    differences = [
        {"path": one.path, "wanted": one.ours, "cached": one.theirs} for one in near.differences[:NAMED]
    ]
    return {"key": near.key, "differences": differences}


def _verified_bytes(path: Path, key: KernelKey) -> bytes | None:
    """The artifact at ``path``; ``None`` when it was evicted or damaged since it was found."""
    try:
        content = path.read_bytes()
        Artifact(content, expected_key=key, origin=str(path)).close()
    except (OSError, ArtifactDamaged):
        return None
    return content
