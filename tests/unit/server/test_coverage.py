"""Questions for coverage on a node with a real store: what counts, what is missing and why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.service_node import SPEC, Node, environment

from kaas.cache.eviction import Eviction
from kaas.cache.limits import StoreLimits
from kaas.proto.errors import CompileFailed, InvalidRequest, StrictMiss
from kaas.server.coverage import CoverageEntry, Coverages
from kaas.server.kernel_request import KernelRequest
from kaas.server.store_keeper import StoreKeeper

OTHER = {**SPEC, "k": 1024}


def on_node(tmp_path: Path, scenario: Callable[[Node, Coverages], Awaitable[None]]) -> None:
    async def run() -> None:
        node = Node(tmp_path / "store", environment())
        try:
            await node.catalog.rebuild()
            await scenario(node, Coverages(node.service, node.catalog, node.scheduler, node.failures))
        finally:
            await node.close()

    asyncio.run(run())


def test_the_gate_opens_and_closes_as_kernels_come_and_go(tmp_path: Path) -> None:
    async def scenario(node: Node, coverages: Coverages) -> None:
        gate = await coverages.set_gate(
            [CoverageEntry(spec=SPEC, weight=3), CoverageEntry(spec=OTHER, weight=1)], 0.75
        )
        assert not gate.is_open
        opened = asyncio.create_task(gate.turned(False))
        delivery = await node.service.get_kernel(KernelRequest(spec=SPEC))
        await opened
        assert gate.is_open
        assert (await coverages.ask([])).held == 1

        node.store.quarantine(delivery.key, "a test")
        assert not gate.is_open
        await node.service.get_kernel(KernelRequest(spec=SPEC))
        assert gate.is_open

        limits = StoreLimits(soft_bytes=1)
        index = node.catalog._index
        keeper = StoreKeeper(
            node.store,
            node.catalog,
            node.catalog.holdings,
            Eviction(node.store, index, limits, lambda _: False, clock=lambda: 1e12),
        )
        await node.catalog.on_index(lambda: None)  # what was published is in the index now
        await keeper._measure()
        await keeper._evict()
        index.close()
        assert keeper.evicted == 1
        assert not gate.is_open

    on_node(tmp_path, scenario)


def test_a_failed_compile_is_told_with_its_error(tmp_path: Path) -> None:
    async def scenario(node: Node, coverages: Coverages) -> None:
        node.pool.outcomes = [CompileFailed("no such instruction", deterministic=True)]
        with pytest.raises(CompileFailed):
            await node.service.get_kernel(KernelRequest(spec=SPEC))
        answer = await coverages.ask([CoverageEntry(spec=SPEC)])
        (missing,) = answer.missing
        assert missing.state == "failed"
        assert missing.error is not None
        assert missing.error["message"] == "no such instruction"

    on_node(tmp_path, scenario)


def test_equal_kernels_add_their_weights_and_the_heaviest_come_first(tmp_path: Path) -> None:
    async def scenario(node: Node, coverages: Coverages) -> None:
        entries = [CoverageEntry(spec=OTHER, weight=2), *[CoverageEntry(spec=SPEC, weight=1.5)] * 2]
        answer = await coverages.ask(entries, missing_limit=1)
        assert (answer.total, answer.weight) == (2, 5.0)
        assert [one.spec and one.spec["k"] for one in answer.missing] == [512]
        assert answer.missing[0].weight == 3.0
        key = node.service.question(SPEC).key
        assert (await coverages.ask([CoverageEntry(key=key)])).missing[0].key == key

    on_node(tmp_path, scenario)


@pytest.mark.parametrize(
    ("entry", "options", "field"),
    [
        (CoverageEntry(spec=SPEC, weight=0.0), {}, "entries.0.weight"),
        (CoverageEntry(spec=SPEC, weight=float("nan")), {}, "entries.0.weight"),
        (CoverageEntry(spec=SPEC, key="0" * 64), {}, "entries.0"),
        (CoverageEntry(key="0"), {}, "key"),
        (CoverageEntry(spec=SPEC), {"coverage": 1.5}, "coverage"),
        (CoverageEntry(spec=SPEC), {"wait_s": 61.0}, "wait_s"),
        (CoverageEntry(spec=SPEC, cann="1.0"), {}, "entries"),
        (None, {}, "entries"),
    ],
)
def test_an_illegal_question_names_the_field(
    tmp_path: Path, entry: CoverageEntry | None, options: dict[str, float], field: str
) -> None:
    async def scenario(node: Node, coverages: Coverages) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            await coverages.ask([entry] if entry else [], **options)  # type: ignore[arg-type]
        assert refusal.value.details["field"] == field

    on_node(tmp_path, scenario)


def test_a_strict_miss_names_the_nearest_kernel(tmp_path: Path) -> None:
    async def scenario(node: Node, coverages: Coverages) -> None:
        near = await node.service.get_kernel(KernelRequest(spec=SPEC))
        with pytest.raises(StrictMiss) as miss:
            await node.service.get_kernel(KernelRequest(spec=OTHER, strict=True))
        nearest = miss.value.details["nearest"]
        assert nearest["key"] == near.key
        assert nearest["differences"] == [{"path": "spec.k", "wanted": 1024, "cached": 512}]

    on_node(tmp_path, scenario)
