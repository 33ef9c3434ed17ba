"""Remote tiers in the main path: what is fetched, written, refused, and what a tier in trouble costs."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.remote_objects import RemoteObjects
from support.service_node import SPEC, Node, environment

from kaas.cache.quarantine import put_away
from kaas.cache.remote_names import artifact_name, signatures_name
from kaas.cache.remote_settings import RemoteTierSettings
from kaas.cache.signatures import SignaturePolicy, SigningKey, TrustList
from kaas.cache.store import Store
from kaas.proto.errors import DeadlineExceeded, RemoteUnavailable
from kaas.proto.passport import KernelKey
from kaas.server.kernel_request import KernelRequest
from kaas.server.prewarm import PrewarmEntry
from kaas.server.remote_tiers import RemoteTiers

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
pytestmark = pytest.mark.asyncio
OURS = SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(b"1" * 32))
THEIRS = SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(b"2" * 32))
SIGNED_ONLY = SignaturePolicy(TrustList({"release": OURS.public}), required=True)
REQUEST = KernelRequest(spec=SPEC)
QUICK = {"deadline_s": 0.05, "write_deadline_s": 0.05, "open_after": 2, "open_s": 0.2}


def tier(name: str = "shared", **changes: Any) -> RemoteTierSettings:
    return RemoteTierSettings(name=name, uri=f"memory://{name}", **{**QUICK, **changes})


def node_of(
    root: Path,
    *places: tuple[RemoteTierSettings, RemoteObjects],
    policy: SignaturePolicy | None = None,
    signing_key: SigningKey | None = None,
) -> Node:
    storages = {settings.name: storage for settings, storage in places}

    def remote(store: Store) -> RemoteTiers:
        return RemoteTiers(
            [settings for settings, _ in places],
            store,
            policy or SignaturePolicy(),
            signing_key,
            opened=lambda settings, _: storages[settings.name],
        )

    return Node(root, environment(), remote=remote)


async def one_kernel(root: Path, spec: dict[str, Any] = SPEC) -> tuple[KernelKey, bytes]:
    """A kernel as another node compiled it."""
    node = Node(root, environment())
    delivery = await node.service.get_kernel(KernelRequest(spec=spec, inline=True))
    await node.close()
    assert delivery.artifact is not None
    return delivery.key, delivery.artifact


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def test_a_kernel_of_a_remote_tier_is_stored_and_served_without_a_compile(tmp_path: Path) -> None:
    key, encoded = await one_kernel(tmp_path / "other")
    objects = RemoteObjects({artifact_name(key): encoded})
    node = node_of(tmp_path / "node", (tier(), objects))
    first = await node.service.get_kernel(REQUEST)
    assert (first.key, first.outcome, first.compile_seconds) == (key, "fetched", 1.5)
    assert first.artifact_path is not None
    assert first.artifact_path.read_bytes() == encoded
    asked = len(objects.calls)
    assert (await node.service.get_kernel(REQUEST)).outcome == "hit"
    assert len(objects.calls) == asked, "a hit here never asks a remote tier"
    assert node.pool.jobs == []
    assert [row.key for row in (await _page(node))] == [key]
    await node.close()


async def test_who_asks_at_the_same_time_shares_one_look(tmp_path: Path) -> None:
    key, encoded = await one_kernel(tmp_path / "other")
    objects = RemoteObjects({artifact_name(key): encoded})
    node = node_of(tmp_path / "node", (tier(), objects))
    asked = [node.service.get_kernel(REQUEST) for _ in range(8)]
    assert {delivery.outcome for delivery in await asyncio.gather(*asked)} == {"fetched"}
    assert objects.calls.count(("read", artifact_name(key))) == 1
    await node.close()


async def test_strict_is_content_with_a_remote_kernel(tmp_path: Path) -> None:
    key, encoded = await one_kernel(tmp_path / "other")
    node = node_of(tmp_path / "node", (tier(), RemoteObjects({artifact_name(key): encoded})))
    assert (await node.service.get_kernel(KernelRequest(spec=SPEC, strict=True))).outcome == "fetched"
    await node.close()


async def test_what_one_node_compiles_the_next_one_fetches_with_its_signature(tmp_path: Path) -> None:
    objects = RemoteObjects()
    builder = node_of(tmp_path / "builder", (tier(), objects), signing_key=OURS)
    delivery = await builder.service.get_kernel(REQUEST)
    assert builder.remote is not None
    assert await builder.remote.drain(5.0) == 0
    assert delivery.artifact_path is not None
    encoded = delivery.artifact_path.read_bytes()
    assert set(objects.objects) == {
        artifact_name(delivery.key),
        signatures_name(delivery.key, digest(encoded)),
    }
    assert objects.calls[-1] == ("write", artifact_name(delivery.key)), "signatures are there first"
    node = node_of(tmp_path / "node", (tier(), objects), policy=SIGNED_ONLY)
    assert (await node.service.get_kernel(REQUEST)).outcome == "fetched"
    await builder.close()
    await node.close()


async def test_a_kernel_of_a_later_tier_is_written_to_the_earlier_ones(tmp_path: Path) -> None:
    key, encoded = await one_kernel(tmp_path / "other")
    near, read_only, far = RemoteObjects(), RemoteObjects(), RemoteObjects({artifact_name(key): encoded})
    node = node_of(
        tmp_path / "node",
        (tier("near"), near),
        (tier("frozen", mode="read"), read_only),
        (tier("far"), far),
    )
    assert (await node.service.get_kernel(REQUEST)).outcome == "fetched"
    assert node.remote is not None
    await node.remote.drain(5.0)
    assert near.objects == {artifact_name(key): encoded}
    assert read_only.objects == {}
    assert ("write", artifact_name(key)) not in far.calls
    await node.close()


async def test_a_black_hole_costs_its_deadline_a_few_times_and_then_nothing(tmp_path: Path) -> None:
    objects = RemoteObjects()
    objects.trouble = "hangs"
    node = node_of(tmp_path / "node", (tier(mode="read", open_s=3600), objects))
    for n in range(5):
        spec = {**SPEC, "n": 1024 * (n + 1)}
        assert (await node.service.get_kernel(KernelRequest(spec=spec))).outcome == "compiled"
    assert len(objects.calls) == QUICK["open_after"]
    assert node.remote is not None
    report = node.remote.reports()[0]
    assert (report.state, report.results) == ("open", {"read_late": 2, "skipped": 3})
    assert report.trouble == "no answer within 0.05 s"
    await node.close()


async def test_a_tier_that_recovers_is_used_again(tmp_path: Path) -> None:
    key, encoded = await one_kernel(tmp_path / "other", {**SPEC, "n": 8192})
    objects = RemoteObjects({artifact_name(key): encoded})
    objects.trouble = "connection refused"
    node = node_of(tmp_path / "node", (tier(mode="read", open_s=0.01), objects))
    for n in (1024, 2048):
        await node.service.get_kernel(KernelRequest(spec={**SPEC, "n": n}))
    objects.trouble = ""
    await asyncio.sleep(0.02)
    assert (await node.service.get_kernel(KernelRequest(spec={**SPEC, "n": 8192}))).outcome == "fetched"
    assert node.remote is not None
    assert node.remote.reports()[0].state == "closed"
    await node.close()


async def test_a_request_with_little_time_does_not_wait_for_a_tier(tmp_path: Path) -> None:
    objects = RemoteObjects()
    objects.trouble = "hangs"
    node = node_of(tmp_path / "node", (tier(deadline_s=30.0), objects))
    async with asyncio.timeout(5):
        with pytest.raises(DeadlineExceeded):
            await node.service.get_kernel(KernelRequest(spec=SPEC, timeout_s=0.05))
    await node.close()


async def test_a_pre_warm_is_done_when_every_tier_has_the_kernel(tmp_path: Path) -> None:
    objects = RemoteObjects()
    node = node_of(tmp_path / "node", (tier(), objects))
    key, outcome = await node.service.warm(PrewarmEntry(spec=SPEC))
    assert outcome == "compiled"
    assert artifact_name(KernelKey(key)) in objects.objects
    objects.objects.clear()
    await node.close()
    again = node_of(tmp_path / "node", (tier(), objects))
    assert (await again.service.warm(PrewarmEntry(spec=SPEC))) == (key, "hit")
    assert artifact_name(KernelKey(key)) in objects.objects, (
        "a builder that begins anew fills what is missing"
    )
    await again.close()


async def test_a_pre_warm_fails_when_a_tier_that_matters_does_not_take_the_kernel(tmp_path: Path) -> None:
    lost, ignored = RemoteObjects(), RemoteObjects()
    lost.trouble = ignored.trouble = "no space"
    node = node_of(
        tmp_path / "node",
        (tier("matters"), lost),
        (tier("may-fail", on_error="ignore", open_s=0.01), ignored),
    )
    with pytest.raises(RemoteUnavailable, match="'matters': no space"):
        await node.service.warm(PrewarmEntry(spec=SPEC))
    ignored.trouble = ""
    await asyncio.sleep(0.02)
    assert node.remote is not None
    await node.remote.drain(5.0)
    assert len(ignored.objects) == 1
    await node.close()


async def test_writes_are_tried_again_until_the_tier_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaas.server.remote_tiers.FIRST_RETRY_S", 0.01)
    objects = RemoteObjects()
    objects.trouble = "busy"
    node = node_of(tmp_path / "node", (tier(mode="write", open_s=0.01), objects))
    assert node.remote is not None
    writing = asyncio.create_task(node.remote.run())
    await node.service.get_kernel(REQUEST)
    async with asyncio.timeout(10):
        while len(objects.calls) < 2:
            await asyncio.sleep(0.01)
        objects.trouble = ""
        while node.remote.waiting:
            await asyncio.sleep(0.01)
    writing.cancel()
    assert len(objects.objects) == 1
    assert node.remote.given_up == 0
    await node.close()


def _flipped(share: float) -> Callable[[bytes], bytes]:
    def flip(encoded: bytes) -> bytes:
        place = min(len(encoded) - 1, int(share * len(encoded)))
        return encoded[:place] + bytes([encoded[place] ^ 1]) + encoded[place + 1 :]

    return flip


ALTERED: dict[str, Callable[[bytes], bytes]] = {
    **{f"a bit at {share:.0%}": _flipped(share) for share in (0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1)},
    "no bytes": lambda _: b"",
    "one byte": lambda encoded: encoded[:1],
    "a header alone": lambda encoded: encoded[:300],
    "half": lambda encoded: encoded[: len(encoded) // 2],
    "without the last byte": lambda encoded: encoded[:-1],
    "one byte more": lambda encoded: encoded + b"\0",
    "twice": lambda encoded: encoded + encoded,
    "zeros": lambda encoded: bytes(len(encoded)),
    "a web page": lambda _: b"<!doctype html><title>Sign in</title>" + b" " * 4000,
    "compressed": zlib.compress,
    "a bomb": lambda _: zlib.compress(bytes(8 << 20)),
    "far too large": lambda encoded: encoded + bytes(4 << 20),
}


@pytest.mark.parametrize("how", ALTERED)
async def test_an_altered_object_is_refused_compiled_instead_and_replaced(how: str, tmp_path: Path) -> None:
    key, encoded = await one_kernel(tmp_path / "other")
    bad = ALTERED[how](encoded)
    objects = RemoteObjects({artifact_name(key): bad})
    node = node_of(tmp_path / "node", (tier(max_object_bytes=1 << 20), objects))
    delivery = await node.service.get_kernel(KernelRequest(spec=SPEC, inline=True))
    assert delivery.outcome == "compiled"
    assert delivery.artifact != bad
    assert list(node.store.keys()) == [key]
    assert node.remote is not None
    assert node.remote.reports()[0].results["refused"] == 1
    await node.remote.drain(5.0)
    assert objects.objects[artifact_name(key)] == delivery.artifact
    await node.close()


async def test_another_kernels_artifact_under_the_name_is_refused(tmp_path: Path) -> None:
    key, _ = await one_kernel(tmp_path / "one")
    _, other = await one_kernel(tmp_path / "other", {**SPEC, "n": 8192})
    node = node_of(tmp_path / "node", (tier(), RemoteObjects({artifact_name(key): other})))
    assert (await node.service.get_kernel(REQUEST)).outcome == "compiled"
    await node.close()


SIGNATURES: dict[str, Callable[[str, bytes], str | None]] = {
    "none": lambda key, encoded: None,
    "nothing in it": lambda key, encoded: "",
    "of somebody else": lambda key, encoded: THEIRS.sign(key, digest(encoded)),
    "for other bytes": lambda key, encoded: OURS.sign(key, digest(encoded + b"x")),
    "for another key": lambda key, encoded: OURS.sign("0" * 64, digest(encoded)),
    "of somebody else under our name": lambda key, encoded: THEIRS.sign(key, digest(encoded)).replace(
        THEIRS.id, OURS.id
    ),
    "cut off": lambda key, encoded: OURS.sign(key, digest(encoded))[:-4],
    "no text": lambda key, encoded: "\udcff" * 20,
    "too many": lambda key, encoded: ",".join([OURS.sign(key, digest(encoded))] * 9),
    "too long": lambda key, encoded: OURS.sign(key, digest(encoded)) + "," * 5000,
}


@pytest.mark.parametrize("how", SIGNATURES)
async def test_without_a_right_signature_a_kernel_is_refused_where_one_is_demanded(
    how: str, tmp_path: Path
) -> None:
    key, encoded = await one_kernel(tmp_path / "other")
    objects = RemoteObjects({artifact_name(key): encoded})
    signatures = SIGNATURES[how](key, encoded)
    if signatures is not None:
        name = signatures_name(key, digest(encoded))
        objects.objects[name] = signatures.encode(errors="surrogateescape")
    node = node_of(tmp_path / "node", (tier(mode="read"), objects), policy=SIGNED_ONLY)
    assert (await node.service.get_kernel(REQUEST)).outcome == "compiled"
    assert node.remote is not None
    assert node.remote.reports()[0].results["refused"] == 1
    await node.close()


async def test_what_is_in_quarantine_here_does_not_come_back(tmp_path: Path) -> None:
    key, encoded = await one_kernel(tmp_path / "other")
    node = node_of(tmp_path / "node", (tier(mode="read"), RemoteObjects({artifact_name(key): encoded})))
    assert (await node.service.get_kernel(REQUEST)).outcome == "fetched"
    put_away(node.store.layout, key, node.store.layout.artifact_path(key), "wrong results")
    assert (await node.service.get_kernel(REQUEST)).outcome == "compiled"
    await node.close()


async def _page(node: Node) -> list[Any]:
    from kaas.server.catalog import KernelFilter

    return (await node.catalog.page(KernelFilter(), page_size=10, page_token="")).kernels
