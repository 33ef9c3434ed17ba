"""Catalog: what is cached or coming, one kernel in full, and why a spec hits or misses. Reads only."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from kaas.cache.artifact import Artifact
from kaas.cache.index import KernelIndex
from kaas.cache.store import Store
from kaas.kernel_library.targets import target_named
from kaas.proto.canonical import canonical_json
from kaas.proto.environment import Environment
from kaas.proto.errors import InvalidRequest, KaasError, KernelNotFound
from kaas.proto.launch import LaunchMetadata
from kaas.proto.passport import FieldDifference, KernelKey, Passport, differences
from kaas.server.explanation import progress_text, reason_for_miss, reason_of_failure
from kaas.server.family_filter import is_known_family, require_family
from kaas.server.holdings import Holdings
from kaas.server.negative_results import Failure, NegativeResults
from kaas.server.paging import MAX_PAGE
from kaas.server.scheduler import Scheduler

log = logging.getLogger(__name__)

State = Literal["ready", "compiling", "queued", "failed"]
STATES = ("ready", "compiling", "queued", "failed")
NEAREST = 3
COMPARED = 40
"""How many cached kernels, those with the likest specs, are compared field by field for an explanation."""

INDEX_PATIENCE_S = 5.0
"""How long a list waits for an index that fills up; a lost one may take minutes, and the list is short."""

T = TypeVar("T")


class KernelFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Empty fields match everything; ``text`` is a substring of key or spec."""

    family: str = ""
    soc_name: str = ""
    cann_version: str = ""
    dtype: str = ""
    state: str = ""
    text: str = ""


class KernelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel in a list. ``current``: its key is what this node would compute for its spec today.

    ``place`` in the queue is from 1, 0 when it is not queued; ``estimate_s`` is seconds until a coming kernel
    is ready. A failed one says when (``created_unix``) and why (``error``). ``leases`` counts live processes
    that hold it.
    """

    key: str
    family: str
    spec: dict[str, Any]
    soc_name: str
    cann_version: str
    toolchain_kind: str
    dtype: str
    state: State
    size_bytes: int
    created_unix: float
    compile_seconds: float
    hits: int
    current: bool
    place: int = 0
    estimate_s: float = 0.0
    error: str = ""
    leases: int = 0
    pinned: bool = False


class KernelPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some kernels, the token of the next page (empty on the last), and how many match in all."""

    kernels: list[KernelSummary]
    next_page_token: str
    total: int


class KernelDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One cached kernel in full."""

    summary: KernelSummary
    passport: Passport
    launch: LaunchMetadata
    choices: dict[str, Any]
    source: str
    log: str
    path: Path | None


class NearKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A cached kernel and every field in which its passport differs from the one asked about."""

    key: str
    differences: list[FieldDifference]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a passport hits or misses, in one sentence and field by field; ``failure`` if that is why."""

    key: str
    hit: bool
    reason: str
    nearest: list[NearKernel]
    failure: Failure | None = None


def dtype_of(spec: dict[str, Any]) -> str:
    """The dtype to show and filter by: ``dtype``, else the input's, else whatever dtype comes first."""
    for name in ("dtype", "dtype_a", *sorted(name for name in spec if name.startswith("dtype"))):
        if isinstance(value := spec.get(name), str):
            return value
    return ""


class Catalog:
    """Answers from index and artifacts; the index runs on one thread of its own, in order."""

    def __init__(
        self,
        environment: Environment,
        store: Store,
        index: KernelIndex,
        scheduler: Scheduler[Any],
        failures: NegativeResults,
        holdings: Holdings | None = None,
        *,
        index_is_whole: bool = True,
    ) -> None:
        """``index_is_whole`` is false where :meth:`rebuild` is still to come."""
        self.holdings = Holdings(store) if holdings is None else holdings
        self._environment = environment
        self._store = store
        self._index = index
        self._scheduler = scheduler
        self._failures = failures
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="index")
        self._index_whole = asyncio.Event()
        if index_is_whole:
            self._index_whole.set()

    async def rebuild(self) -> None:
        """Bring the index in line with the store after a start; trouble leaves lists short, nothing else."""
        try:
            steps = self._index.rebuilding(self._store, summarize)
            while await self.on_index(lambda: next(steps, self) is not self):
                pass
        except Exception:  # as for every update
            log.warning("the index could not be rebuilt", exc_info=True)
        finally:
            self._index_whole.set()

    def added(self, summary: dict[str, Any]) -> None:
        """A kernel was published. The index is a convenience: its trouble is logged, never raised."""
        self.holdings.wanted.arrived(summary["key"])
        self._later(lambda: self._index.record(summary))

    def used(self, key: str) -> None:
        """A kernel was asked for and found."""
        self._later(lambda: self._index.touch(key))

    def released(self, keys: list[str]) -> None:
        """A process that held these kernels is gone: they were in use until now."""

        def note() -> None:
            for key in keys:
                self._index.touch(key, is_hit=False)

        self._later(note)

    def removed(self, key: str) -> None:
        """A kernel is not in the store any more."""
        self.holdings.wanted.left(key)
        self._later(lambda: self._index.forget(key))

    async def close(self) -> None:
        """Finish what is queued for the index and close it."""
        await self.on_index(self._index.close)
        self._thread.shutdown(wait=False)

    async def page(self, wanted: KernelFilter, *, page_size: int, page_token: str) -> KernelPage:
        """Kernels that are coming, then those whose compile failed, then cached ones, newest first.

        Raises :class:`InvalidRequest` for an unknown family, state, page size or page token.
        """
        if wanted.family and not is_known_family(wanted.family):
            await self._whole_index()
            require_family(wanted.family, await self.on_index(self._index.families))
        if wanted.state and wanted.state not in STATES:
            raise InvalidRequest(f"no state {wanted.state!r}", field="state", legal=STATES)
        if not 1 <= page_size <= MAX_PAGE:
            raise InvalidRequest(f"page_size is {page_size}", field="page_size", legal=f"1 to {MAX_PAGE}")
        await self._whole_index()
        coming = [
            summary
            for summary in (*self._coming(), *self._failed(), *self._in_memory())
            if _matches(summary, wanted)
        ]
        offset, cached_token = _position(page_token)
        first = coming[offset : offset + page_size] if cached_token is None else []
        room = page_size - len(first)
        rows, next_cached, cached_total = await self._cached(wanted, room, cached_token or "")
        if cached_token is None and offset + page_size < len(coming):
            token = f"coming:{offset + page_size}"
        elif cached_token is None and room == 0 and cached_total:
            token = "cached:"
        else:
            token = f"cached:{next_cached}" if next_cached else ""
        return KernelPage(
            kernels=[*first, *(self._summary(row) for row in rows)],
            next_page_token=token,
            total=len(coming) + cached_total,
        )

    async def describe(self, key: str) -> KernelDetail:
        """One cached kernel by key or unambiguous prefix (at least 6 digits).

        Raises :class:`InvalidRequest` or :class:`KernelNotFound`.
        """
        full = await self.resolve(key)
        artifact = await asyncio.to_thread(self._store.load, full)
        path: Path | None = self._store.layout.artifact_path(full)
        if artifact is None:
            self.removed(full)
            artifact, path = self._from_memory(full), None
        if artifact is None:
            raise KernelNotFound(f"no cached kernel has the key {key}", key=key)
        with artifact:
            row = await self.on_index(lambda: self._index.get(full))
            return KernelDetail(
                summary=self._summary({**summarize(artifact), **(row or {})}),
                passport=artifact.passport,
                launch=artifact.launch,
                choices=dict(artifact.choices),
                source=artifact.source,
                log=artifact.log,
                path=path,
            )

    async def explain(self, passport: Passport) -> Explanation:
        """Whether a passport hits, and if not, which cached kernels are nearest and in what they differ."""
        key = passport.key()
        artifact = await asyncio.to_thread(self._store.load, key)
        if artifact is not None:
            artifact.close()
            return Explanation(key=key, hit=True, reason="It is in the store.", nearest=[])
        if key in self.holdings.memory:
            reason = "It is kept in memory, until the store has room for it."
            return Explanation(key=key, hit=True, reason=reason, nearest=[])
        await self._whole_index()
        nearest = await self._nearest(passport)
        forecast = self._scheduler.forecasts().get(key)
        failure = None if forecast is not None else self._failures.recall(key)
        if forecast is not None:
            reason = f"Not cached yet: {progress_text(forecast)}."
        elif failure is not None:
            reason = reason_of_failure(failure)
        else:
            reason = self._reason(passport, nearest)
        return Explanation(key=key, hit=False, reason=reason, nearest=nearest, failure=failure)

    async def why_absent(self, passport: Passport) -> str:
        """Why a kernel is not in the store, in one sentence, whether or not it is being compiled."""
        return self._reason(passport, await self._nearest(passport))

    def _reason(self, passport: Passport, nearest: list[NearKernel]) -> str:
        removal = self.holdings.audit.removal(passport.key())
        if removal:
            return f"Not cached: {removal[0].lower()}{removal[1:]}"
        if nearest:
            return reason_for_miss(nearest[0].differences)
        family = passport.spec.get("family")
        return f"Not cached: the store holds no kernel of the family {family!r} at all."

    async def resolve(self, key: str) -> KernelKey:
        """The whole key of a kernel from an unambiguous prefix of at least 6 digits; a whole key is taken.

        Raises :class:`InvalidRequest` or :class:`KernelNotFound`.
        """
        if not re.fullmatch(r"[0-9a-f]{6,64}", key):
            raise InvalidRequest(
                f"{key[:80]!r} is no kernel key", field="key", legal="6 to 64 digits 0-9 a-f"
            )
        if len(key) == 64:
            return KernelKey(key)
        await self._whole_index()
        cached = await self.on_index(lambda: self._index.keys_with_prefix(key, limit=5))
        matches = sorted({*cached, *self.holdings.keys(key, limit=5)})
        if not matches:
            raise KernelNotFound(f"no cached kernel's key begins with {key}", key=key)
        if len(matches) > 1:
            raise InvalidRequest(
                f"more than one key begins with {key}", field="key", legal="more digits", near=matches
            )
        return KernelKey(matches[0])

    async def _cached(
        self, wanted: KernelFilter, page_size: int, page_token: str
    ) -> tuple[list[dict[str, Any]], str, int]:
        if wanted.state not in ("", "ready"):
            return [], "", 0
        filters = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value}
        filters.pop("state", None)
        return await self.on_index(lambda: self._index.list(filters, page_size, page_token))

    def _coming(self) -> Iterator[KernelSummary]:
        forecasts = self._scheduler.forecasts()
        for key, state, passport in self._scheduler.in_flight():
            if isinstance(passport, Passport):
                row = {**summarize_passport(passport), "key": key, "state": state}
                if (forecast := forecasts.get(key)) is not None:
                    row |= {"place": forecast.place, "estimate_s": forecast.estimate_s}
                yield self._summary(row)

    def _failed(self) -> Iterator[KernelSummary]:
        flying = {key for key, _, _ in self._scheduler.in_flight()}
        for failure in self._failures.all():
            if failure.key not in flying:
                yield self._summary(
                    {
                        **summarize_passport(failure.passport),
                        "state": "failed",
                        "created_unix": failure.failed_unix,
                        "error": failure.message,
                    }
                )

    def _in_memory(self) -> Iterator[KernelSummary]:
        for kernel in self.holdings.memory.kernels():
            yield self._summary(kernel.row)

    def _from_memory(self, key: str) -> Artifact | None:
        kernel = self.holdings.memory.get(key)
        return None if kernel is None else Artifact(kernel.encoded, expected_key=key, origin="memory")

    def _summary(self, row: dict[str, Any]) -> KernelSummary:
        fields: dict[str, Any] = {
            "state": "ready",
            "hits": 0,
            "size_bytes": 0,
            "created_unix": 0.0,
            "compile_seconds": 0.0,
        }
        fields |= {name: value for name, value in row.items() if name in _SUMMARY_FIELDS}
        return KernelSummary(
            **fields,
            current=self._is_current(row),
            leases=self.holdings.leases.holders(row["key"]),
            pinned=self.holdings.pins.is_pinned(row["key"]),
        )

    def _is_current(self, row: dict[str, Any]) -> bool:
        own = self._environment.target
        try:
            target = own if row["soc_name"] == own.soc_name else target_named(row["soc_name"])
            return bool(self._environment.passport(row["spec"], target).key() == row["key"])
        except KaasError:
            return False

    async def _nearest(self, passport: Passport) -> list[NearKernel]:
        likely = await self.on_index(lambda: self._index.nearest(passport.spec, COMPARED))
        family = passport.spec.get("family")
        keys = [row["key"] for row in likely if row["family"] == family]
        return await asyncio.to_thread(self._compare, passport, keys)

    def _compare(self, passport: Passport, keys: list[str]) -> list[NearKernel]:
        found = []
        for key in keys:
            artifact = self._store.load(KernelKey(key))
            if artifact is None:
                self._later(functools.partial(self._index.forget, key))
                continue
            with artifact:
                found.append(NearKernel(key=key, differences=differences(passport, artifact.passport)))
        # The same spec first: when the toolchain changed, that is the news, not a neighbour with another n.
        found.sort(key=lambda near: (_differs_in_spec(near), len(near.differences), near.key))
        return found[:NEAREST]

    async def _whole_index(self) -> None:
        """Right after a start the index fills up: who asks for a list waits for it, within reason."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INDEX_PATIENCE_S):
                await self._index_whole.wait()

    async def on_index(self, call: Callable[[], T]) -> T:
        """Run a short call on the index's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _later(self, call: Callable[[], None]) -> None:
        def quietly() -> None:
            try:
                call()
            except Exception:  # the index is disposable; the next rebuild makes it right
                log.warning("the index did not take an update", exc_info=True)

        self._thread.submit(quietly)


def summarize_passport(passport: Passport) -> dict[str, Any]:
    """The part of a summary that a passport alone decides."""
    return {
        "key": passport.key(),
        "family": str(passport.spec.get("family")),
        "spec": passport.spec,
        "soc_name": passport.target.soc_name,
        "cann_version": passport.toolchain.cann_version,
        "toolchain_kind": passport.toolchain.kind,
        "dtype": dtype_of(passport.spec),
    }


def summarize(artifact: Artifact) -> dict[str, Any]:
    """The index row of a stored kernel."""
    return {
        **summarize_passport(artifact.passport),
        "size_bytes": artifact.size_bytes,
        "created_unix": artifact.created_unix,
        "compile_seconds": artifact.compile_seconds,
    }


_SUMMARY_FIELDS = frozenset(field.name for field in msgspec.structs.fields(KernelSummary)) - {
    "current",
    "leases",
    "pinned",
}


def _matches(summary: KernelSummary, wanted: KernelFilter) -> bool:
    text = wanted.text.casefold()
    return all(
        not getattr(wanted, name) or getattr(wanted, name).casefold() == getattr(summary, name).casefold()
        for name in ("family", "soc_name", "cann_version", "dtype", "state")
    ) and (text in summary.key or text in canonical_json(summary.spec).decode().casefold())


def _position(token: str) -> tuple[int, str | None]:
    """Where a page starts: an offset among coming kernels, or the index's own token among cached ones."""
    kind, separator, rest = token.partition(":")
    if not token:
        return 0, None
    if separator and kind == "cached":
        return 0, rest
    if separator and kind == "coming" and rest.isascii() and rest.isdigit() and len(rest) < 10:
        return int(rest), None
    raise InvalidRequest("the page token is not one of ours", field="page_token", legal="a next_page_token")


def _differs_in_spec(near: NearKernel) -> bool:
    return any(difference.path.split(".")[0] == "spec" for difference in near.differences)
