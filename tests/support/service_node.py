"""One node in this process: a real store, catalogue and service around a staged compiler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from support import client_store

from kaas.cache.artifact import encode_artifact
from kaas.cache.environment_file import publish_environment
from kaas.cache.index import KernelIndex
from kaas.cache.store import Store
from kaas.compiler.job import CompileJob, CompileLimits, CompileOutput
from kaas.kernel_library.registry import families, family_digest
from kaas.proto.environment import Environment, Locality
from kaas.proto.launch import LaunchMetadata
from kaas.proto.passport import SCHEMA_VERSION
from kaas.server.catalog import Catalog
from kaas.server.compile_costs import CompileCosts
from kaas.server.kernel_request import Kernel, Question
from kaas.server.negative_results import NegativeResults
from kaas.server.remote_tiers import RemoteTiers
from kaas.server.scheduler import Scheduler
from kaas.server.service import KernelService

SPEC: dict[str, Any] = {"family": "gemm", "n": 4096, "k": 512}


def environment(**changes: Any) -> Environment:
    """A client's node, with all families and a toolchain of its own."""
    client = client_store.environment()
    plain = msgspec.structs.replace(
        client,
        schema_version=SCHEMA_VERSION,
        toolchain=msgspec.structs.replace(
            client.toolchain, cann_version="9.0.0", compiler_version="twin", host_arch="x86_64"
        ),
        family_digests={name: family_digest(family) for name, family in families().items()},
        options=("-O2", "--flag"),
        locality=Locality(acl_library="/twin/libascendcl.so", toolkit_home="/twin", socket="/s"),
    )
    return msgspec.structs.replace(plain, **changes)


class StagedPool:
    """Stands where the compiler pool stands; each job takes the next staged outcome, or succeeds."""

    def __init__(self) -> None:
        self.jobs: list[CompileJob] = []
        self.hurried: list[str] = []
        self.outcomes: list[Exception | None] = []

    def hurry(self, tag: str) -> None:
        self.hurried.append(tag)

    async def compile(self, job: CompileJob, tag: str) -> CompileOutput:
        self.jobs.append(job)
        await asyncio.sleep(0)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        return CompileOutput(
            image=b"\x7fELF image",
            source="__aicore__",
            log="fine",
            launch=LaunchMetadata(entry="k", block_count=28, dynamic_ub_bytes=0, parameters=(), signature=()),
            choices={"block_m": 128},
            compile_seconds=1.5,
            cpu_seconds=1.0,
            peak_rss_bytes=1,
        )


class Node:
    """Service, catalogue, store and staged pool of one node."""

    def __init__(
        self,
        root: Path,
        env: Environment,
        pool: Any = None,
        *,
        index_is_whole: bool = True,
        remote: Callable[[Store], RemoteTiers] | None = None,
    ) -> None:
        self.store = Store.open(root)
        publish_environment(root, env)  # as the daemon does before it serves
        self.pool: Any = pool or StagedPool()
        scheduler: Scheduler[Kernel] = Scheduler(workers=2, queue_limit=10)
        self.scheduler = scheduler
        self.failures = NegativeResults(lifetime_s=3600, transient_lifetime_s=30)
        self.costs = CompileCosts(first_guess_bytes=1 << 30, limit_bytes=8 << 30)
        self.catalog = Catalog(
            env, self.store, KernelIndex(root), scheduler, self.failures, index_is_whole=index_is_whole
        )
        self.remote = remote(self.store) if remote is not None else None
        self.service = KernelService(
            environment=env,
            store=self.store,
            catalog=self.catalog,
            pool=self.pool,
            scheduler=scheduler,
            limits=CompileLimits(wall_s=1.0, memory_bytes=1 << 30),
            failures=self.failures,
            costs=self.costs,
            remote=self.remote,
        )

    async def close(self) -> None:
        await self.catalog.close()
        self.store.close()

    @staticmethod
    def encoded(question: Question, output: CompileOutput) -> bytes:
        """The artifact that the service would make of a compile's output."""
        return encode_artifact(
            passport=question.passport,
            launch=output.launch,
            choices=output.choices,
            image=output.image,
            source=output.source,
            log=output.log,
            created_unix=1.0,
            compile_seconds=output.compile_seconds,
        )
