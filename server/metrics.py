"""Metrics of the daemon in the Prometheus text format, computed when they are asked for.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4).
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from kaas.proto.environment import Environment
from kaas.server.coverage import Coverages
from kaas.server.negative_results import NegativeResults
from kaas.server.remote_tiers import RemoteTiers
from kaas.server.scheduler import Scheduler
from kaas.server.service import KernelService
from kaas.server.store_service import StoreService

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]
Scrape = Callable[[], Awaitable[str]]
Readiness = Callable[[], Awaitable[dict[str, bool]]]


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: its samples by labels; a sample without labels has an empty tuple."""

    name: str
    help: str
    kind: Literal["counter", "gauge"]
    samples: Mapping[Labels, float]


def exposition(metrics: Iterable[Metric]) -> str:
    """The text that a scrape gets."""
    lines: list[str] = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {_escaped(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for labels, value in metric.samples.items():
            pairs = ",".join(f'{name}="{_quoted(text)}"' for name, text in labels)
            lines.append(f"{metric.name}{'{' + pairs + '}' if pairs else ''} {_number(value)}")
    return "\n".join(lines) + "\n"


class Metrics:
    """What one daemon tells of itself."""

    def __init__(
        self,
        *,
        environment: Environment,
        version: str,
        service: KernelService,
        scheduler: Scheduler[Any],
        failures: NegativeResults,
        store: StoreService,
        readiness: Readiness,
        coverages: Coverages,
        remote: RemoteTiers,
    ) -> None:
        self._environment = environment
        self._version = version
        self._service = service
        self._scheduler = scheduler
        self._failures = failures
        self._store = store
        self._readiness = readiness
        self._coverages = coverages
        self._remote = remote

    async def scrape(self) -> str:
        """All metrics, as text."""
        checks = await self._readiness()
        parts = (self._node(checks), self._requests(), self._compiles(), self._stored(), self._remote_tiers())
        return exposition(itertools.chain(*parts))

    def _node(self, checks: Mapping[str, bool]) -> Iterator[Metric]:
        target, toolchain = self._environment.target, self._environment.toolchain
        about = {
            "version": self._version,
            "soc_name": target.soc_name,
            "toolkit": toolchain.kind,
            "cann": toolchain.cann_version,
        }
        yield _gauge(
            "build_info", "What the daemon is and compiles for; always 1.", {tuple(about.items()): 1}
        )
        yield _gauge("ready", "Whether every check of /readyz holds.", all(checks.values()))
        yield _gauge(
            "ready_check",
            "Each check of /readyz: 1 if it holds.",
            {(("check", name),): holds for name, holds in checks.items()},
        )
        gate = self._coverages.of_gate()
        if gate is not None:
            yield _gauge("manifest_coverage", "Weight of ready_manifest that is here, 0 to 1.", gate.coverage)
            yield _gauge("manifest_kernels", "Kernels of ready_manifest for this node.", gate.total)
            yield _gauge("manifest_kernels_held", "How many of those are here.", gate.held)

    def _requests(self) -> Iterator[Metric]:
        yield _counter(
            "requests_total",
            "Requests that reached the daemon, by how they ended (store hits of clients do not reach it).",
            {
                (("outcome", outcome), ("priority", priority)): count
                for (outcome, priority), count in sorted(self._service.outcomes.items())
            },
        )

    def _compiles(self) -> Iterator[Metric]:
        scheduler, counters = self._scheduler, self._scheduler.counters
        yield _gauge("compiles_running", "Compiles at work.", scheduler.running)
        yield _gauge("compiles_queued", "Compiles that wait for a slot or for memory.", scheduler.queued)
        yield _gauge(
            "compile_reserved_bytes", "Memory that running compiles set aside.", scheduler.reserved_bytes
        )
        yield _counter(
            "compiles_total",
            "Compiles that ended, by result.",
            {(("result", "succeeded"),): counters.succeeded, (("result", "failed"),): counters.failed},
        )
        yield _counter(
            "compile_failures_total",
            "Compiles that failed, by error code.",
            {(("code", code),): count for code, count in sorted(counters.failures.items())},
        )
        yield _counter("compile_retries_total", "Second and later tries of a compile.", counters.retried)
        yield _counter(
            "requests_rejected_total",
            "Requests refused or pushed out because the queue was full.",
            counters.rejected + counters.shed,
        )
        yield _counter("deadlines_missed_total", "Requests that gave up waiting.", counters.deadlines_missed)
        yield _gauge(
            "remembered_failures", "Kernels that are answered with an error.", len(self._failures.all())
        )

    def _stored(self) -> Iterator[Metric]:
        usage = self._store.usage()
        used, limits, memory = usage["used"], usage["limits"], usage["in_memory"]
        yield _gauge("store_bytes", "What the store's artifacts take.", used["bytes"])
        yield _gauge("store_files", "Artifacts in the store.", used["files"])
        yield _gauge("store_soft_bytes", "Above this, kernels are evicted; 0: never.", limits["soft_bytes"])
        yield _gauge("store_hard_bytes", "Above this, none is stored; 0: no limit.", limits["hard_bytes"])
        yield _gauge(
            "store_stuck",
            "1 while the store is above a limit and all of it is in use.",
            usage["over_limit_but_in_use"],
        )
        yield _counter("evicted_kernels_total", "Kernels evicted since the start.", usage["evicted"])
        yield _gauge("memory_kernels", "Kernels that could not be stored.", memory["kernels"])
        yield _gauge("memory_kernels_bytes", "What those take.", memory["bytes"])
        yield _counter("memory_kernels_dropped_total", "Those lost for want of memory.", memory["dropped"])
        yield _gauge("leases", "Kernels that live processes hold.", usage["leases"]["kernels_held"])
        yield _gauge("lease_processes", "Live processes that hold kernels.", usage["leases"]["processes"])
        yield _gauge("pins", "Pins that hold.", usage["pins"])
        yield _counter("scrub_passes_total", "Finished checks of all artifacts.", usage["scrub"]["passes"])
        yield _gauge(
            "scrub_damaged", "Damaged artifacts that the last check found.", usage["scrub"]["damaged"]
        )
        yield _counter("audit_lost_total", "Records that the audit log lost.", usage["audit_lost"])
        yield _gauge("daemon_resident_bytes", "The daemon's own memory.", usage["daemon_resident_bytes"])

    def _remote_tiers(self) -> Iterator[Metric]:
        if not self._remote:
            return
        reports = self._remote.reports()
        yield _gauge(
            "remote_open",
            "1 while a remote tier is left alone because it failed.",
            {(("tier", one.name),): one.state != "closed" for one in reports},
        )
        yield _counter(
            "remote_calls_total",
            "Look-ups and writes of a remote tier, by what came of them.",
            {
                (("tier", one.name), ("result", result)): count
                for one in reports
                for result, count in sorted(one.results.items())
            },
        )
        yield _gauge("remote_writes_waiting", "Kernels still to be written.", self._remote.waiting)
        yield _counter(
            "remote_writes_given_up_total", "Kernels that were never written.", self._remote.given_up
        )


def _gauge(name: str, text: str, samples: float | Mapping[Labels, float]) -> Metric:
    return Metric(name=f"kaas_{name}", help=text, kind="gauge", samples=_by_labels(samples))


def _counter(name: str, text: str, samples: float | Mapping[Labels, float]) -> Metric:
    return Metric(name=f"kaas_{name}", help=text, kind="counter", samples=_by_labels(samples))


def _by_labels(samples: float | Mapping[Labels, float]) -> Mapping[Labels, float]:
    return samples if isinstance(samples, Mapping) else {(): samples}


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
