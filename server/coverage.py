"""Coverage: which of many kernels this node holds, by weight, and what becomes of those that it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from kaas.cache.layout import require_key
from kaas.kernel_library.registry import kernel_specs
from kaas.proto.errors import InvalidRequest, KaasError
from kaas.server.catalog import Catalog
from kaas.server.negative_results import NegativeResults
from kaas.server.scheduler import Scheduler
from kaas.server.service import KernelService
from kaas.server.status import as_kaas_error
from kaas.server.wanted_kernels import WantedKernels, WantedSets

MAX_ENTRIES = 20_000
MAX_WAIT_S = 60.0
MAX_WEIGHT = 1e15
LISTED = 20
MAX_LISTED = 1000

MissingState = Literal["missing", "queued", "compiling", "failed", "refused"]


class CoverageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted: a kernel's or a composite's ``spec``, or a ``key``; and for which part and CANN."""

    spec: bytes | dict[str, Any] = b""
    key: str = ""
    soc_name: str = ""
    cann: str = ""
    weight: float = 1.0


class MissingKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that is not here. ``refused`` ones have no key on this node; ``error`` says why."""

    index: int
    key: str
    spec: dict[str, Any] | None
    soc_name: str
    weight: float
    state: MissingState
    error: dict[str, Any] | None = None


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; ``missing`` lists those that weigh most, ``left_out`` counts entries for other nodes."""

    coverage: float
    total: int
    held: int
    weight: float
    held_weight: float
    left_out: int
    missing: list[MissingKernel]
    soc_name: str
    cann_version: str


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    key: str
    spec: dict[str, Any] | None
    soc_name: str
    weight: float
    error: KaasError | None = None


class _Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a question that are for this node."""

    asked: list[_Asked]
    left_out: int

    def wanted(self) -> WantedKernels:
        weights: dict[str, float] = {}
        for one in self.asked:
            if one.error is None:
                weights[one.key] = weights.get(one.key, 0.0) + one.weight
        return WantedKernels(weights, sum(one.weight for one in self.asked if one.error is not None))


class Gate:
    """The manifest that readiness waits for."""

    def __init__(self, asked: _Resolved, wanted: WantedKernels, threshold: float) -> None:
        self.asked = asked
        self.wanted = wanted
        self.threshold = threshold

    @property
    def is_open(self) -> bool:
        """Whether the node holds as much of it as it is to."""
        return self.wanted.covers(self.threshold)

    async def turned(self, was_open: bool) -> None:
        """Return when the gate is no longer as it was."""
        while True:
            news = self.wanted.news
            if self.is_open != was_open:
                return
            await news.wait()


class Coverages:
    """Answers questions for coverage, and keeps the node's own gate if it has one."""

    def __init__(
        self,
        service: KernelService,
        catalog: Catalog,
        scheduler: Scheduler[Any],
        failures: NegativeResults,
    ) -> None:
        self._service = service
        self._sets: WantedSets = catalog.holdings.wanted
        self._scheduler = scheduler
        self._failures = failures
        self._waiting: set[asyncio.Task[Any]] = set()
        self.gate: Gate | None = None

    async def set_gate(self, entries: Sequence[CoverageEntry], threshold: float) -> Gate:
        """Keep an eye on these kernels from now on. Raises :class:`InvalidRequest` if none is for here."""
        resolved = await asyncio.to_thread(self._resolve, entries, False)
        self.gate = Gate(resolved, resolved.wanted(), threshold)
        await self._sets.open(self.gate.wanted)
        return self.gate

    async def ask(
        self,
        entries: Sequence[CoverageEntry],
        *,
        all_targets: bool = False,
        missing_limit: int = 0,
        coverage: float = 0.0,
        wait_s: float = 0.0,
    ) -> Coverage:
        """How much of ``entries`` is here, as soon as it is ``coverage``, after ``wait_s`` at the latest.

        No entries: the node's own gate. Raises :class:`InvalidRequest`, also when nothing is for this node.
        """
        _require(0 <= wait_s <= MAX_WAIT_S, "wait_s", f"0 to {MAX_WAIT_S:g} seconds")
        _require(0 <= coverage <= 1, "coverage", "0 to 1")
        _require(0 <= missing_limit <= MAX_LISTED, "missing_limit", f"0 to {MAX_LISTED}; 0 is {LISTED}")
        if entries:
            resolved = await asyncio.to_thread(self._resolve, entries, all_targets)
            wanted = resolved.wanted()
            async with self._sets.opened(wanted):
                await self._until(wanted, coverage, wait_s)
        elif self.gate is not None:
            resolved, wanted = self.gate.asked, self.gate.wanted
            await self._until(wanted, coverage, wait_s)
        else:
            raise InvalidRequest(
                "no kernels are named, and this node's readiness waits for no manifest",
                field="entries",
                legal="at least one entry, or a node with ready_manifest",
            )
        return self._answer(resolved, wanted, missing_limit or LISTED)

    def of_gate(self) -> Coverage | None:
        """How far the node's own gate is; ``None`` without one."""
        if self.gate is None:
            return None
        return self._answer(self.gate.asked, self.gate.wanted, LISTED)

    async def stop(self) -> None:
        """Answer everybody who waits now."""
        for task in self._waiting:
            task.cancel()

    async def _until(self, wanted: WantedKernels, coverage: float, wait_s: float) -> None:
        if not wait_s or wanted.covers(coverage):
            return
        waiting = asyncio.create_task(wanted.until(coverage, wait_s))
        self._waiting.add(waiting)
        try:
            await asyncio.wait((waiting,))
        finally:
            self._waiting.discard(waiting)
            waiting.cancel()

    def _resolve(self, entries: Sequence[CoverageEntry], all_targets: bool) -> _Resolved:
        _require(len(entries) <= MAX_ENTRIES, "entries", f"at most {MAX_ENTRIES} entries")
        own, cann = self._service.environment.target.soc_name, self._own_cann
        asked: list[_Asked] = []
        left_out = 0
        for index, entry in enumerate(entries):
            _require(0 < entry.weight <= MAX_WEIGHT, f"entries.{index}.weight", f"above 0, to {MAX_WEIGHT:g}")
            other_part = entry.soc_name.strip().casefold() not in ("", own.casefold())
            if entry.cann not in ("", cann) or (other_part and not all_targets):
                left_out += 1
            elif entry.key:
                _require(not entry.spec, f"entries.{index}", "either a spec or a key")
                key = require_key(entry.key)
                asked.append(_Asked(index=index, key=key, spec=None, soc_name="", weight=entry.weight))
            else:
                asked += self._kernels(index, entry, entry.soc_name if other_part else own)
        if not asked:
            raise InvalidRequest(
                f"none of {len(entries)} entries is for this node, which is {own} with CANN {cann}",
                field="entries",
                legal=f"an entry without a target, or for {own} and CANN {cann}",
            )
        return _Resolved(asked=asked, left_out=left_out)

    @property
    def _own_cann(self) -> str:
        return self._service.environment.toolchain.cann_version

    def _kernels(self, index: int, entry: CoverageEntry, soc_name: str) -> list[_Asked]:
        """One for each kernel of an entry; what has no key here is never held."""
        found: list[_Asked] = []
        try:
            for spec in kernel_specs(entry.spec):
                record = spec.to_record()
                question = self._service.question(record, entry.soc_name)
                found.append(
                    _Asked(index=index, key=question.key, spec=record, soc_name=soc_name, weight=entry.weight)
                )
        except Exception as error:
            refused = _Asked(
                index=index,
                key="",
                spec=entry.spec if isinstance(entry.spec, dict) else None,
                soc_name=soc_name,
                weight=entry.weight,
                error=as_kaas_error(error),
            )
            return [refused]
        return found

    def _answer(self, resolved: _Resolved, wanted: WantedKernels, limit: int) -> Coverage:
        missing = wanted.missing
        absent: dict[str | int, _Asked] = {}
        for one in resolved.asked:
            if not one.key:
                absent[one.index] = one
            elif one.key in missing:
                absent.setdefault(one.key, one)

        def weight(one: _Asked) -> float:
            # Several entries may want one kernel.
            return wanted.weights[one.key] if one.key else one.weight

        heaviest = sorted(absent.values(), key=lambda one: (-weight(one), one.index))[:limit]
        flying = {key: state for key, state, _ in self._scheduler.in_flight()} if heaviest else {}
        refused = sum(not one.key for one in absent.values())
        total = len(wanted.weights) + refused
        return Coverage(
            coverage=wanted.coverage,
            total=total,
            held=total - len(absent),
            weight=wanted.weight,
            held_weight=wanted.held_weight,
            left_out=resolved.left_out,
            missing=[self._missing(one, weight(one), flying) for one in heaviest],
            soc_name=self._service.environment.target.soc_name,
            cann_version=self._own_cann,
        )

    def _missing(
        self, one: _Asked, weight: float, flying: dict[str, Literal["queued", "compiling"]]
    ) -> MissingKernel:
        state: MissingState = "missing"
        error: dict[str, Any] | None = None
        if one.error is not None:
            state, error = "refused", one.error.to_record()
        elif one.key in flying:
            state = flying[one.key]
        elif (failure := self._failures.recall(one.key)) is not None:
            state, error = "failed", failure.error
        return MissingKernel(
            index=one.index,
            key=one.key,
            spec=one.spec,
            soc_name=one.soc_name,
            weight=weight,
            state=state,
            error=error,
        )


def _require(is_legal: bool, field: str, legal: str) -> None:
    if not is_legal:
        raise InvalidRequest(f"{field} is not legal; legal: {legal}", field=field, legal=legal)
