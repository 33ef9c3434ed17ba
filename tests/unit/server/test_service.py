"""The main path with a staged compiler and a real store: what is compiled, stored, refused and explained."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.service_node import SPEC, Node, environment

from kaas.cache.artifact import Artifact
from kaas.cache.audit_log import AuditLog
from kaas.cache.eviction import Eviction
from kaas.cache.index import KernelIndex
from kaas.cache.limits import StoreLimits
from kaas.cache.memory_tier import MemoryTier
from kaas.kernel_library.targets import target_named
from kaas.proto.environment import Environment
from kaas.proto.errors import CompileFailed, CompileOutOfMemory, StoreFull, StrictMiss, UnsupportedTarget
from kaas.server.audit import Audit
from kaas.server.catalog import KernelFilter
from kaas.server.kernel_request import KernelRequest
from kaas.server.prewarm import PrewarmEntry
from kaas.server.store_keeper import StoreKeeper


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
        for method in ("rebuilding", "record", "touch"):
            monkeypatch.setattr(KernelIndex, method, broken)
        await node.catalog.rebuild()
        outcomes = [(await node.service.get_kernel(KernelRequest(spec=SPEC))).outcome for _ in range(2)]
        assert outcomes == ["compiled", "hit"]

    on_node(tmp_path, scenario)


def test_a_kernel_that_cannot_be_stored_is_served_from_memory_and_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(node: Node) -> None:
        holdings = node.catalog.holdings
        holdings.memory = MemoryTier(1 << 20)

        def refuse(key: str, encoded: bytes) -> Path:
            raise StoreFull("no space")

        with monkeypatch.context() as full:
            full.setattr(node.store, "publish", refuse)
            first = await node.service.get_kernel(KernelRequest(spec=SPEC))
            second = await node.service.get_kernel(KernelRequest(spec=SPEC, strict=True))
            assert (first.outcome, second.outcome) == ("compiled", "hit")
            assert first.artifact == second.artifact is not None
            assert second.artifact_path is None
            page = await node.catalog.page(KernelFilter(), page_size=10, page_token="")
            assert [(kernel.key, kernel.state) for kernel in page.kernels] == [(first.key, "ready")]
            explained = await node.catalog.explain(node.service.question(SPEC).passport)
            assert explained.hit
            eviction = Eviction(node.store, KernelIndex(node.store.root), StoreLimits(), lambda _: False)
            keeper = StoreKeeper(node.store, node.catalog, holdings, eviction)
            await keeper.store_waiting()
            assert first.key in holdings.memory
        await keeper.store_waiting()
        assert first.key not in holdings.memory
        third = await node.service.get_kernel(KernelRequest(spec=SPEC, inline=True))
        assert (third.outcome, third.artifact) == ("hit", first.artifact)
        assert third.artifact_path is not None
        assert len(node.pool.jobs) == 1

    on_node(tmp_path, scenario)


def test_the_audit_says_who_asked_and_why_it_was_compiled(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.catalog.holdings.audit = audit = Audit(AuditLog(node.store.layout, 1 << 20))
        request = KernelRequest(spec=SPEC, pid=7, job="j", rank="3")
        key = (await node.service.get_kernel(request)).key
        await node.service.get_kernel(request)
        await node.service.get_kernel(KernelRequest(spec={**SPEC, "n": 64}))
        with pytest.raises(UnsupportedTarget):
            await node.service.get_kernel(KernelRequest(spec=SPEC, soc_name="Ascend1"))
        records = await audit.find(event="request")
        assert [record["outcome"] for record in records] == [
            "compiled",
            "hit",
            "compiled",
            "unsupported_target",
        ]
        assert [records[0][name] for name in ("key", "pid", "job", "rank")] == [key, 7, "j", "3"]
        assert "holds no kernel of the family 'gemm'" in records[0]["why"]
        assert "why" not in records[1]
        assert "spec.n is 4096 there and 64 here" in records[2]["why"]
        node.store.quarantine(key, "a test")
        audit.note("quarantined", key=key, reason="a test")
        await node.service.get_kernel(request)
        assert "taken out of service" in (await audit.find(key=key))[-1]["why"]

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


def test_a_remembered_failure_is_listed_explained_and_answered_until_it_is_cleared(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.service.get_kernel(KernelRequest(spec={**SPEC, "n": 64}))
        node.pool.outcomes = [CompileFailed("no such intrinsic", stage="bisheng", deterministic=True)]
        for _ in range(5):
            with pytest.raises(CompileFailed, match="no such intrinsic"):
                await node.service.get_kernel(KernelRequest(spec=SPEC))
        assert len(node.pool.jobs) == 2

        question = node.service.question(SPEC)
        everything = await node.catalog.page(KernelFilter(), page_size=10, page_token="")
        assert [kernel.state for kernel in everything.kernels] == ["failed", "ready"]
        failed = await node.catalog.page(KernelFilter(state="failed"), page_size=10, page_token="")
        assert [(kernel.key, kernel.error, kernel.current) for kernel in failed.kernels] == [
            (question.key, "no such intrinsic", True)
        ]
        explanation = await node.catalog.explain(question.passport)
        assert explanation.failure is not None
        assert "no such intrinsic. The same compile would fail again" in explanation.reason
        assert f"kaas failures --clear {question.key[:12]}" in explanation.reason

        node.failures.clear(question.key)
        assert (await node.service.get_kernel(KernelRequest(spec=SPEC))).outcome == "compiled"
        assert node.failures.all() == []
        assert (await node.catalog.explain(question.passport)).hit

    on_node(tmp_path, scenario)


def test_strict_mode_says_that_it_failed(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.pool.outcomes = [CompileFailed("no", stage="bisheng", deterministic=True)]
        with pytest.raises(CompileFailed):
            await node.service.get_kernel(KernelRequest(spec=SPEC))
        with pytest.raises(StrictMiss, match="its compile failed at"):
            await node.service.get_kernel(KernelRequest(spec=SPEC, strict=True))

    on_node(tmp_path, scenario)


def test_coming_kernels_have_a_place_and_an_estimate(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        gate = asyncio.Event()
        compile_at_once = node.pool.compile

        async def compile_later(job: Any, tag: str) -> Any:
            await gate.wait()
            return await compile_at_once(job, tag)

        node.pool.compile = compile_later
        requests = [
            asyncio.create_task(node.service.get_kernel(KernelRequest(spec={**SPEC, "n": 64 * n})))
            for n in range(1, 5)
        ]
        while len(list(node.service._scheduler.in_flight())) < 4:
            await asyncio.sleep(0.001)
        page = await node.catalog.page(KernelFilter(), page_size=10, page_token="")
        assert [(kernel.state, kernel.place) for kernel in page.kernels] == [
            ("compiling", 0),
            ("compiling", 0),
            ("queued", 1),
            ("queued", 2),
        ]
        assert all(kernel.estimate_s > 0 for kernel in page.kernels if kernel.state == "queued")
        explanation = await node.catalog.explain(node.service.question(page.kernels[-1].spec).passport)
        assert "it is queued as number 2, about" in explanation.reason
        gate.set()
        await asyncio.gather(*requests)

    on_node(tmp_path, scenario)


def test_costs_are_learned_from_what_compiles_took(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.service.get_kernel(KernelRequest(spec=SPEC))
        assert (node.costs.peak_bytes("gemm"), node.costs.seconds("gemm")) == (1, 1.5)
        node.pool.outcomes = [CompileOutOfMemory("too much", limit_bytes=8 << 30)]
        with pytest.raises(CompileOutOfMemory):
            await node.service.get_kernel(KernelRequest(spec={**SPEC, "n": 64}))
        assert node.costs.peak_bytes("gemm") == 8 << 30

    on_node(tmp_path, scenario)


def test_prewarming_compiles_in_the_background_until_somebody_asks(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        begun, gate = asyncio.Event(), asyncio.Event()
        compile_at_once = node.pool.compile

        async def compile_later(job: Any, tag: str) -> Any:
            begun.set()
            await gate.wait()
            return await compile_at_once(job, tag)

        node.pool.compile = compile_later
        behind = asyncio.create_task(node.service.warm(PrewarmEntry(spec=SPEC)))
        await begun.wait()
        assert node.pool.hurried == []
        waiting = asyncio.create_task(node.service.get_kernel(KernelRequest(spec=SPEC)))
        while not node.pool.hurried:
            await asyncio.sleep(0.001)
        gate.set()
        key, _ = await behind
        assert (await waiting).key == key
        assert set(node.pool.hurried) == {key}
        assert [job.background for job in node.pool.jobs] == [True]
        await node.service.get_kernel(KernelRequest(spec={**SPEC, "n": 64}))
        assert [job.background for job in node.pool.jobs] == [True, False]

    on_node(tmp_path, scenario)
