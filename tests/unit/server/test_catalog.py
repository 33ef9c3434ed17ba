"""Lists and explanations right after a start, when the index still fills up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.service_node import SPEC, Node, environment

from kaas.server import catalog
from kaas.server.catalog import KernelFilter
from kaas.server.kernel_request import KernelRequest

LARGER = {**SPEC, "n": 8192}


async def one_kernel_from_before(root: Path) -> str:
    before = Node(root, environment())
    key = (await before.service.get_kernel(KernelRequest(spec=SPEC))).key
    await before.close()
    return key


def test_who_asks_before_the_index_is_whole_gets_the_whole_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        key = await one_kernel_from_before(tmp_path)
        node = Node(tmp_path, environment(), index_is_whole=False)
        page = asyncio.create_task(node.catalog.page(KernelFilter(), page_size=5, page_token=""))
        passport = node.service.question(LARGER).passport
        explanation = asyncio.create_task(node.catalog.explain(passport))
        resolved = asyncio.create_task(node.catalog.resolve(key[:8]))
        done, _ = await asyncio.wait((page, explanation, resolved), timeout=0.1)
        assert not done
        await node.catalog.rebuild()
        assert [kernel.key for kernel in (await page).kernels] == [key]
        assert [near.key for near in (await explanation).nearest] == [key]
        assert await resolved == key
        await node.close()

    asyncio.run(scenario())


def test_nobody_waits_for_ever_for_an_index_that_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "INDEX_PATIENCE_S", 0.01)

    async def scenario() -> None:
        await one_kernel_from_before(tmp_path)
        node = Node(tmp_path, environment(), index_is_whole=False)
        assert (await node.catalog.page(KernelFilter(), page_size=5, page_token="")).total == 0
        await node.close()

    asyncio.run(scenario())
