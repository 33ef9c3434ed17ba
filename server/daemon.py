"""Daemon: the composition root. Builds every part from the configuration, serves, stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from kaas.cache.atomic import write_staged
from kaas.cache.environment_file import publish_environment, read_environment
from kaas.cache.eviction import Eviction
from kaas.cache.index import KernelIndex
from kaas.cache.limits import StoreLimits
from kaas.cache.signatures import SignaturePolicy, read_signing_key
from kaas.cache.store import Store
from kaas.compiler.device_probe import detect_target
from kaas.compiler.environment import describe_environment
from kaas.compiler.job import CompileLimits
from kaas.compiler.pool import CompilerPool
from kaas.compiler.toolkit import Toolkit, find_toolkit
from kaas.proto.environment import Environment
from kaas.proto.errors import InvalidConfig, InvalidRequest, KaasError
from kaas.proto.locations import lease_socket
from kaas.proto.log_facts import facts
from kaas.server import listeners
from kaas.server.admission import SHARE, Admission, MemoryBudget
from kaas.server.catalog import Catalog
from kaas.server.compile_costs import CompileCosts
from kaas.server.config import Config, load_config, parse_address
from kaas.server.control_group import memory_room
from kaas.server.coverage import Coverages
from kaas.server.failure_kind import RetryPolicy
from kaas.server.foreign_kernels import ForeignKernels
from kaas.server.grpc_api import GrpcServer, KernelServicer
from kaas.server.grpc_store import StoreServicer
from kaas.server.holdings import Holdings
from kaas.server.kernel_request import Kernel
from kaas.server.lease_server import LeaseServer
from kaas.server.listeners import SocketAccess
from kaas.server.metrics import Metrics
from kaas.server.negative_results import NegativeResults
from kaas.server.prewarm import PrewarmJobs
from kaas.server.remote_tiers import RemoteTiers
from kaas.server.scheduler import Scheduler
from kaas.server.scrubber import Scrubber
from kaas.server.service import KernelService
from kaas.server.status import as_kaas_error
from kaas.server.store_keeper import StoreKeeper
from kaas.server.store_service import StoreService
from kaas.server.telemetry import configure_logging

if TYPE_CHECKING:
    from kaas.server.rest_server import RestServer

log = logging.getLogger(__name__)

WORKER_RETRY_S = 30.0
"""Pause before another try when the workers cannot be started (no memory just now, say)."""

SOCKET_PERIOD_S = 10.0
"""How long a deleted socket stays away."""

READINESS_PERIOD_S = 10.0
"""How late the health service may be about the store; about the workers it is not late at all."""

REFUSED_TO_START = 2
"""Exit status when the daemon cannot start; the reason is one line on standard error."""


def run_daemon(overrides: Mapping[str, str], config_file: Path | None = None) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP. Returns the exit status; never raises for what a user did."""
    try:
        config = load_config(overrides, config_file)
        configure_logging(config)
        return serve(config)
    except Exception as error:  # nothing but one line reaches whoever started it; a bug's traceback is logged
        print(f"kaas: {as_kaas_error(error)}", file=sys.stderr)
        return REFUSED_TO_START


def serve(config: Config) -> int:
    """Run one daemon in this process. Raises :class:`KaasError` when it cannot start."""
    # All that matters is on disk at any moment, so what does not end in time (a disk that hangs) is left.
    limit = threading.Timer(config.shutdown_grace_s, _give_up)
    limit.daemon = True
    try:
        asyncio.run(_serve(config, limit.start))
    finally:
        limit.cancel()
    return 0


def _give_up() -> None:
    log.error("the grace period is over, leaving at once")
    os._exit(1)


async def _serve(config: Config, limit_stop: Callable[[], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    daemon = Daemon(config)
    stopping = asyncio.create_task(stop.wait())
    starting = asyncio.create_task(daemon.start())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            print(daemon.banner(), flush=True)
        await stopping
        log.info("stopping")
    finally:
        limit_stop()
        await _ended(starting, stopping)
        await daemon.stop()


class Daemon:
    """All parts of a running daemon. ``start`` listens first; what can wait runs in the background."""

    def __init__(self, config: Config) -> None:
        self._config = config
        access = SocketAccess(mode=int(config.socket_mode, 8), group=config.socket_group)
        self._access = access
        self._closing = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Open the store, publish the environment, listen; warm the workers in the background."""
        config = self._config
        closing = self._closing
        # The commonest mistake, a second daemon, is told before anything expensive happens.
        listeners.refuse_live(Path(config.socket), field="socket")
        policy = SignaturePolicy.read(config.trust_list, required=config.require_signature)
        log.info("configuration", extra=facts(**msgspec.structs.asdict(config)))
        self._store = Store.open(
            Path(config.store), _store_limits(config), allow_network_fs=config.allow_network_fs
        )
        closing.callback(self._store.close)
        # May build the twin, ask a device, and reads every compiler and header once.
        environment = asyncio.create_task(asyncio.to_thread(_environment, config))
        if parse_address(config.rest_address) is not None:
            _rest_modules()  # meanwhile: files are hashed without holding the interpreter
        self.environment = await environment
        index = KernelIndex(Path(config.store))
        pool = self._pool = CompilerPool(
            max_jobs=config.zygote_max_jobs, max_rss_bytes=config.zygote_max_rss_bytes, attempts=1
        )
        limits = _compile_limits(config)
        costs = CompileCosts.in_store(
            self._store.root,
            self._store.layout.staging,
            first_guess_bytes=config.compile_memory_first_guess_bytes,
            limit_bytes=limits.memory_bytes,
        )
        closing.callback(costs.close)
        failures = NegativeResults.in_store(
            self._store.root,
            self._store.layout.staging,
            lifetime_s=config.failure_lifetime_s,
            transient_lifetime_s=config.transient_failure_lifetime_s,
        )
        closing.callback(failures.close)
        scheduler: Scheduler[Kernel] = Scheduler(
            workers=config.workers,
            queue_limit=config.queue_limit,
            admission=Admission(
                slots=config.workers,
                costs=costs,
                budget=MemoryBudget(config.compile_memory_budget_bytes, held=pool.held_bytes),
                limit_bytes=limits.memory_bytes,
            ),
            retries=RetryPolicy(attempts=config.compile_attempts, first_delay_s=config.compile_retry_delay_s),
        )
        holdings = Holdings(
            self._store, memory_bytes=config.memory_kernels_bytes, audit_bytes=config.audit_max_bytes
        )
        closing.push_async_callback(holdings.audit.flush)
        self._catalog = Catalog(
            self.environment, self._store, index, scheduler, failures, holdings, index_is_whole=False
        )
        eviction = Eviction(self._store, index, self._store.limits, holdings.protects)
        self._keeper = StoreKeeper(self._store, self._catalog, holdings, eviction)
        closing.push_async_callback(self._catalog.close)
        closing.push_async_callback(pool.close)
        remote = self._remote = self._remote_tiers(config, policy)
        service = KernelService(
            environment=self.environment,
            store=self._store,
            catalog=self._catalog,
            pool=pool,
            scheduler=scheduler,
            limits=limits,
            failures=failures,
            costs=costs,
            remote=remote,
        )
        coverages = self._coverages = Coverages(service, self._catalog, scheduler, failures)
        if config.ready_manifest:
            await self._set_gate(config)
        jobs = PrewarmJobs(service.warm, width=2 * config.workers)
        leases = self._leases = LeaseServer(
            holdings.leases,
            holdings.audit,
            used=self._catalog.used,
            released=self._catalog.released,
            ask=service.get_kernel,
        )
        await leases.start(lease_socket(Path(config.socket)), self._access)
        closing.push_async_callback(leases.stop)
        self._scrubber = Scrubber(
            self._store,
            self._catalog,
            bytes_per_s=config.scrub_bytes_per_s,
            period_s=config.scrub_period_s,
        )
        store = StoreService(service, self._store, self._catalog, self._keeper, self._scrubber)
        foreign = ForeignKernels(self._store, self._catalog, policy)
        metrics = Metrics(
            environment=self.environment,
            version=version("ascend-kaas"),
            service=service,
            scheduler=scheduler,
            failures=failures,
            store=store,
            readiness=self.readiness,
            coverages=coverages,
            remote=remote,
        )
        await self._listen(service, jobs, failures, StoreServicer(store, foreign), store, metrics)
        closing.push_async_callback(remote.drain, config.shutdown_grace_s)
        closing.push_async_callback(scheduler.stop, config.shutdown_grace_s)
        closing.push_async_callback(jobs.stop)
        closing.push_async_callback(coverages.stop)
        closing.push_async_callback(self._grpc.begin_stop)
        background = asyncio.create_task(self._warm_up(), name="warm-up")
        closing.push_async_callback(_ended, background)

    async def stop(self) -> None:
        """Refuse new work, wake every waiter, end workers, remove the sockets."""
        await self._closing.aclose()

    def banner(self) -> str:
        """The one line that says what is served, how and where."""
        target, toolchain = self.environment.target, self.environment.toolchain
        compiler = f"CANN {toolchain.cann_version}"
        if toolchain.kind == "twin":
            compiler = f"the CPU TWIN (no NPU, no CANN: results are emulated) of {compiler}"
        rest = f", REST on {self._rest.url}" if self._rest else ""
        return (
            f"kaas serving {target.soc_name} ({target.cube_cores} cube cores) with {compiler} "
            f"on {self._config.socket}{rest}, store {self._config.store}"
        )

    async def readiness(self) -> dict[str, bool]:
        """The checks behind ``/readyz`` and the health service's readiness."""
        checks = {
            "workers_warm": self._pool.is_warm,
            "store_usable": await asyncio.to_thread(_is_writable, self._store),
        }
        if self._coverages.gate is not None:
            checks["kernels_covered"] = self._coverages.gate.is_open
        return checks

    def _remote_tiers(self, config: Config, policy: SignaturePolicy) -> RemoteTiers:
        signing_key = read_signing_key(Path(config.signing_key)) if config.signing_key else None
        tiers = RemoteTiers(config.remote_tiers, self._store, policy, signing_key)
        for settings in config.remote_tiers:
            log.info("remote tier %s", settings.shown())
        return tiers

    async def _set_gate(self, config: Config) -> None:
        from kaas.server.ready_manifest import read_ready_manifest  # which YAML comes with

        entries = await asyncio.to_thread(read_ready_manifest, config.ready_manifest)
        try:
            gate = await self._coverages.set_gate(entries, config.ready_coverage)
        except InvalidRequest as refusal:
            raise InvalidConfig(
                f"ready_manifest: {refusal.message}", field="ready_manifest", legal=refusal.details["legal"]
            ) from None
        log.info(
            "readiness waits for a manifest",
            extra=facts(
                manifest=config.ready_manifest,
                threshold=config.ready_coverage,
                coverage=gate.wanted.coverage,
                kernels=len(gate.wanted.weights),
            ),
        )

    async def _listen(
        self,
        service: KernelService,
        jobs: PrewarmJobs,
        failures: NegativeResults,
        servicer: StoreServicer,
        store: StoreService,
        metrics: Metrics,
    ) -> None:
        config = self._config
        kernels = KernelServicer(service, self._catalog, jobs, failures, self._coverages)
        self._grpc = GrpcServer(kernels, servicer)
        self._grpc.bind_unix(Path(config.socket), self._access)
        self._closing.push_async_callback(self._grpc.stop, 1.0)
        if (tcp := parse_address(config.tcp_address)) is not None:
            self._grpc.bind_tcp(tcp.host, tcp.port)
        self._rest: RestServer | None = None
        if (rest := parse_address(config.rest_address)) is not None:
            rest_api, rest_server = _rest_modules()
            app = rest_api.create_app(
                service,
                self._catalog,
                jobs,
                failures,
                self.readiness,
                version("ascend-kaas"),
                store,
                metrics.scrape,
                self._coverages,
            )
            self._rest = rest_server.RestServer(app, rest, self._access, allow_remote=config.allow_remote)
            self._closing.push_async_callback(self._rest.stop)
            self._rest.start()
            if not rest.path:
                log.warning(
                    "REST on %s asks nobody who they are: every user of this machine may use it",
                    self._rest.url,
                )
        self._monitoring: RestServer | None = None
        if (monitoring := parse_address(config.monitoring_address)) is not None:
            from kaas.server import monitoring_api, rest_server

            self._monitoring = rest_server.RestServer(
                monitoring_api.create_monitoring_app(self.readiness, metrics.scrape, self._coverages),
                monitoring,
                self._access,
                allow_remote=True,
                field="monitoring_address",
                checks_host=False,
            )
            self._closing.push_async_callback(self._monitoring.stop)
            self._monitoring.start()
            log.info("metrics and probes on %s", self._monitoring.url)
        await self._grpc.start()

    async def _warm_up(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_store())
            group.create_task(self._catalog.holdings.audit.run())
            group.create_task(self._keep_workers_warm())
            group.create_task(self._tell_readiness())
            group.create_task(self._keep_sockets())
            group.create_task(self._remote.run())

    async def _keep_sockets(self) -> None:
        """A cleaner of old files may take a socket away; who connects next must find it again."""

        async def renew_rest() -> bool:
            return self._rest is not None and self._rest.renew()

        async def renew_monitoring() -> bool:
            return self._monitoring is not None and self._monitoring.renew()

        kept = {
            str(self._config.socket): self._grpc.renew_unix,
            str(lease_socket(Path(self._config.socket))): self._leases.renew,
            str(self._config.rest_address): renew_rest,
            str(self._config.monitoring_address): renew_monitoring,
        }
        while True:
            await asyncio.sleep(SOCKET_PERIOD_S)
            for path, renew in kept.items():
                try:
                    if await renew():
                        log.warning("the socket %s was deleted, and is there again", path)
                except (KaasError, OSError) as error:
                    log.error("the socket %s was deleted and cannot be made again: %s", path, error)

    async def _keep_store(self) -> None:
        """What must go is known once the index is complete; until then nothing does."""
        await self._catalog.rebuild()
        await self._catalog.holdings.recall()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keeper.run())
            group.create_task(self._scrubber.run())

    async def _keep_workers_warm(self) -> None:
        """Start them; the pool replaces a zygote that dies, but tries only once when nobody asks it."""
        while True:
            try:
                await self._pool.start()
            except KaasError as error:
                log.error("compile workers do not start, only cached kernels are served: %s", error)
            await asyncio.sleep(WORKER_RETRY_S)

    async def _tell_readiness(self) -> None:
        """Have the health service say what ``/readyz`` says."""
        told: dict[str, bool] = {}
        while True:
            self._pool.warmth_changed.clear()
            checks = await self.readiness()
            await self._grpc.set_ready(all(checks.values()))
            if checks != told:
                if all(checks.values()):
                    log.info("compile workers are warm and the store is usable", extra=facts(**checks))
                elif told:
                    log.warning("not ready", extra=facts(**checks))
                told = checks
            news: list[asyncio.Task[Any]] = [asyncio.create_task(self._pool.warmth_changed.wait())]
            if self._coverages.gate is not None:
                turned = self._coverages.gate.turned(checks["kernels_covered"])
                news.append(asyncio.create_task(turned))
            try:
                await asyncio.wait(news, timeout=READINESS_PERIOD_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _ended(*news)


def _rest_modules() -> tuple[ModuleType, ModuleType]:
    """REST's own and FastAPI, half of all that the daemon imports: only where it is served."""
    from kaas.server import rest_api, rest_server

    return rest_api, rest_server


def _store_limits(config: Config) -> StoreLimits:
    return StoreLimits(
        soft_bytes=config.store_soft_bytes,
        soft_files=config.store_soft_files,
        max_idle_s=config.store_max_idle_s,
        hard_bytes=config.store_hard_bytes,
        min_free_bytes=config.store_min_free_bytes,
        half_life_s=config.store_half_life_s,
    )


def _compile_limits(config: Config) -> CompileLimits:
    """As configured, but less than this node's memory: our own limit ends a compile, not the kernel's."""
    most = int(SHARE * memory_room().total_bytes)
    return CompileLimits(
        wall_s=config.compile_wall_limit_s, memory_bytes=min(config.compile_memory_limit_bytes, most)
    )


def _is_writable(store: Store) -> bool:
    try:
        write_staged(store.layout.staging, "readiness", b"").unlink()
    except OSError as error:
        log.warning("the store is not writable: %s", error)
        return False
    return True


def _toolkit(config: Config) -> Toolkit:
    return find_toolkit(os.environ, home=Path(config.toolkit_home) if config.toolkit_home else None)


def _environment(config: Config) -> Environment:
    """This node's environment, published; its generation is the stored one's, or the next if it changed."""
    toolkit = _toolkit(config)
    target, source = detect_target(toolkit, config.soc_name or None)
    describe = functools.partial(
        describe_environment,
        toolkit,
        target,
        source,
        socket=config.socket,
        extra_options=config.device_options.split(),
    )
    before = read_environment(config.store)
    now = describe(generation=before.generation if before else 1)
    if now == before:
        return now  # and a full disk is no reason not to serve
    if before is not None:
        now = msgspec.structs.replace(now, generation=before.generation + 1)
    publish_environment(config.store, now)
    return now


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their end, whatever it is."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
