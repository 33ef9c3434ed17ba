"""Lists by family: of a known one, of one that only stored kernels have, and of none at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.kernels import encoded, passport
from support.service_node import Node, environment

from kaas.proto.errors import InvalidRequest
from kaas.server.catalog import KernelFilter


def with_node(root: Path, scenario: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        node = Node(root, environment())
        try:
            await scenario(node)
        finally:
            await node.close()

    asyncio.run(run())


async def listed(node: Node, family: str) -> int:
    return (await node.catalog.page(KernelFilter(family=family), page_size=10, page_token="")).total


def test_an_unknown_family_is_refused_and_a_known_one_without_kernels_is_empty(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        assert await listed(node, "") == 0
        assert await listed(node, "rmsnorm") == 0
        assert await listed(node, "RmsNorm") == 0
        with pytest.raises(InvalidRequest, match="did you mean gemm") as caught:
            await listed(node, "gem")
        assert caught.value.details["field"] == "family"
        assert {"gemm", "rmsnorm", "mla_decode"} <= set(caught.value.details["legal"])
        with pytest.raises(InvalidRequest, match="legal: "):
            node.failures.of_family("qqqqqqqq")
        assert node.failures.of_family("gemm") == []

    with_node(tmp_path / "store", scenario)


def test_stored_kernels_of_a_family_that_is_gone_are_listed(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        known = passport()
        older = msgspec.structs.replace(known, spec={**known.spec, "family": "an_older_one"})
        node.store.publish(older.key(), encoded(older))
        await node.catalog.rebuild()
        assert await listed(node, "an_older_one") == 1
        with pytest.raises(InvalidRequest):
            await listed(node, "another_older_one")

    with_node(tmp_path / "store", scenario)
