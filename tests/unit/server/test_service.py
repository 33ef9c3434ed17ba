"""The main path with a staged compiler and a real store: what is compiled, stored, refused and explained."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kaas.cache.artifact import Artifact
from kaas.cache.environment_file import publish_environment
from kaas.cache.index import KernelIndex
from kaas.cache.store import Store
from kaas.compiler.job import CompileJob, CompileLimits, CompileOutput
from kaas.kernel_library.registry import families, family_digest
from kaas.kernel_library.targets import target_named
from kaas.proto.environment import Environment, Locality
from kaas.proto.errors import CompileFailed, StoreFull, StrictMiss, UnsupportedTarget
from kaas.proto.launch import LaunchMetadata
from kaas.proto.passport import SCHEMA_VERSION
from kaas.proto.toolchain import Toolchain
from kaas.server.catalog import Catalog, KernelFilter
from kaas.server.compile_costs import CompileCosts
from kaas.server.kernel_request import Kernel, KernelRequest
from kaas.server.negative_results import NegativeResults
from kaas.server.scheduler import Scheduler
from kaas.server.service import KernelService

SPEC: dict[str, Any] = {"family": "gemm", "n": 4096, "k": 512}


def environment(**changes: Any) -> Environment:
    plain = Environment(
        schema_version=SCHEMA_VERSION,
        generation=1,
        kaas_version="0.1.0",
        target=target_named("Ascend950PR_9579"),
        target_source="configured",
        toolchain=Toolchain(
            kind="twin",
            cann_version="9.0.0",
            compiler_version="twin",
            bisheng_digest="1" * 64,
            linker_digest="2" * 64,
            headers_digest="3" * 64,
            host_arch="x86_64",
        ),
        tilelang_version="0.1.15",
        tilelang_native_digest="4" * 64,
        templates_digest="5" * 64,
        lowering_digest="6" * 64,
        family_digests={name: family_digest(family) for name, family in families().items()},
        options=("-O2", "--flag"),
        locality=Locality(acl_library="/twin/libascendcl.so", toolkit_home="/twin", socket="/s"),
    )
    return msgspec.structs.replace(plain, **changes)


class StagedPool:
    """Stands where the compiler pool stands; each job takes the next staged outcome, or succeeds."""

    def __init__(self) -> None:
        self.jobs: list[CompileJob] = []
        self.outcomes: list[Exception | None] = []

    async def compile(self, job: CompileJob) -> CompileOutput:
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

    def __init__(self, root: Path, env: Environment) -> None:
        self.store = Store.open(root)
        publish_environment(root, env)  # as the daemon does before it serves
        self.pool = StagedPool()
        scheduler: Scheduler[Kernel] = Scheduler(workers=2, queue_limit=10)
        self.failures = NegativeResults(lifetime_s=3600, transient_lifetime_s=30)
        self.costs = CompileCosts(first_guess_bytes=1 << 30, limit_bytes=8 << 30)
        self.catalog = Catalog(env, self.store, KernelIndex(root), scheduler, self.failures)
        self.service = KernelService(
            environment=env,
            store=self.store,
            catalog=self.catalog,
            pool=self.pool,  # type: ignore[arg-type]
            scheduler=scheduler,
            limits=CompileLimits(wall_s=1.0, memory_bytes=1 << 30),
            failures=self.failures,
            costs=self.costs,
        )

    async def close(self) -> None:
        await self.catalog.close()
        self.store.close()


def on_node(
    tmp_path: Path, scenario: Callable[[Node], Awaitable[None]], env: Environment | None = None
) -> None:
    async def run() -> None:
        node = Node(tmp_path / "store", env or environment())
        try:
            await node.catalog.rebuild()
            await scenario(node)
        finally:
            await node.close()

    asyncio.run(run())


def test_a_miss_is_compiled_stored_and_then_a_hit(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        first = await node.service.get_kernel(KernelRequest(spec=SPEC))
        second = await node.service.get_kernel(KernelRequest(spec=SPEC, soc_name="ascend950pr_9579"))
        assert (first.outcome, second.outcome) == ("compiled", "hit")
        assert first.key == second.key
        assert first.artifact is None
        assert first.artifact_path is not None
        assert second.compile_seconds == 1.5
        assert len(node.pool.jobs) == 1
        assert node.pool.jobs[0].options == ("-O2", "--flag")
        assert node.pool.jobs[0].spec["m"] == "dynamic"

    on_node(tmp_path, scenario)


def test_inline_bytes_are_the_stored_file(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        delivery = await node.service.get_kernel(KernelRequest(spec=SPEC, inline=True))
        assert delivery.artifact_path is not None
        assert delivery.artifact == delivery.artifact_path.read_bytes()

    on_node(tmp_path, scenario)


def test_another_target_is_another_kernel(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        here = await node.service.get_kernel(KernelRequest(spec=SPEC))
        there = await node.service.get_kernel(KernelRequest(spec=SPEC, soc_name="Ascend950DT_9581"))
        assert here.key != there.key
        assert node.pool.jobs[1].target.cube_cores == 32
        with pytest.raises(UnsupportedTarget):
            await node.service.get_kernel(KernelRequest(spec=SPEC, soc_name="Ascend950"))

    on_node(tmp_path, scenario)


def test_a_damaged_artifact_is_rebuilt_once(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        first = await node.service.get_kernel(KernelRequest(spec=SPEC))
        assert first.artifact_path is not None
        content = bytearray(first.artifact_path.read_bytes())
        content[-1] ^= 1
        first.artifact_path.write_bytes(content)
        again = await node.service.get_kernel(KernelRequest(spec=SPEC))
        third = await node.service.get_kernel(KernelRequest(spec=SPEC))
        assert (again.outcome, third.outcome) == ("compiled", "hit")
        assert len(node.pool.jobs) == 2
        assert len(node.store.quarantined()) == 1

    on_node(tmp_path, scenario)


def test_a_full_store_costs_the_cache_entry_not_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(node: Node) -> None:
        def refuse(key: str, encoded: bytes) -> Path:
            raise StoreFull("no space")

        monkeypatch.setattr(node.store, "publish", refuse)
        delivery = await node.service.get_kernel(KernelRequest(spec=SPEC))
        assert delivery.artifact_path is None
        assert delivery.artifact is not None
        assert Artifact(delivery.artifact, expected_key=delivery.key).source == "__aicore__"

    on_node(tmp_path, scenario)


def test_a_broken_index_costs_lists_not_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("the index is broken")

    async def scenario(node: Node) -> None:
        for method in ("rebuild", "record", "touch"):
            monkeypatch.setattr(KernelIndex, method, broken)
        await node.catalog.rebuild()
        outcomes = [(await node.service.get_kernel(KernelRequest(spec=SPEC))).outcome for _ in range(2)]
        assert outcomes == ["compiled", "hit"]

    on_node(tmp_path, scenario)


def test_strict_mode_never_compiles(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        with pytest.raises(StrictMiss) as refusal:
            await node.service.get_kernel(KernelRequest(spec=SPEC, strict=True))
        assert refusal.value.details["spec"]["n"] == 4096
        assert node.pool.jobs == []

    on_node(tmp_path, scenario)


def test_a_hundred_identical_failing_requests_are_one_compile(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.pool.outcomes = [CompileFailed("no", stage="device")]
        requests = [node.service.get_kernel(KernelRequest(spec=SPEC)) for _ in range(100)]
        failures = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(failure, CompileFailed) for failure in failures)
        assert len(node.pool.jobs) == 1

    on_node(tmp_path, scenario)


CHANGES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "tilelang": ({"tilelang_version": "0.1.16"}, {"generator.tilelang_version"}),
    "options": ({"options": ("-O3", "--flag")}, {"options"}),
    "family source": (
        {"family_digests": {"gemm": "9" * 64, "rmsnorm": "8" * 64}},
        {"generator.family_digest"},
    ),
    "CANN": (
        {"toolchain": msgspec.structs.replace(environment().toolchain, cann_version="9.1.0")},
        {"toolchain.cann_version"},
    ),
    "SKU": (
        {"target": target_named("Ascend950DT_9581")},
        {"target.soc_name", "target.cube_cores", "target.vector_cores"},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_explain_names_exactly_what_changed(change: str, tmp_path: Path) -> None:
    changes, paths = CHANGES[change]

    async def before(node: Node) -> None:
        await node.service.get_kernel(KernelRequest(spec=SPEC))
        await node.service.get_kernel(KernelRequest(spec={**SPEC, "n": 64}))

    async def after(node: Node) -> None:
        explanation = await node.catalog.explain(node.service.question(SPEC).passport)
        assert not explanation.hit
        assert {difference.path for difference in explanation.nearest[0].differences} == paths
        assert all(path in explanation.reason for path in paths)
        page = await node.catalog.page(KernelFilter(), page_size=10, page_token="")
        own = {kernel.current for kernel in page.kernels}
        assert own == ({True} if change == "SKU" else {False})

    on_node(tmp_path, before)
    on_node(tmp_path, after, environment(**changes))


def test_an_empty_store_is_explained_as_such(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        explanation = await node.catalog.explain(node.service.question(SPEC).passport)
        assert explanation.nearest == []
        assert "no kernel of the family 'gemm'" in explanation.reason
        await node.service.get_kernel(KernelRequest(spec=SPEC))
        assert (await node.catalog.explain(node.service.question(SPEC).passport)).hit

    on_node(tmp_path, scenario)
