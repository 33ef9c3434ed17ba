"""Foreign kernels: what the daemon publishes of what lies in its staging directory, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bundle_drafts import digest
from support.client_store import PublishedStore
from support.service_node import Node, environment

from kaas.cache.atomic import write_staged
from kaas.cache.foreign_artifact import staged_name
from kaas.cache.signatures import SignaturePolicy, SigningKey, TrustList
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.proto.errors import ArtifactDamaged, InvalidRequest, KaasError, KernelNotFound, SignatureRefused
from kaas.server.foreign_kernels import MAX_KERNELS, ForeignKernel, ForeignKernels

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
pytestmark = pytest.mark.asyncio
OURS = SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(b"1" * 32))


def artifact(tmp_path: Path, n: int) -> tuple[str, bytes]:
    path = PublishedStore(tmp_path / "other").add(GemmSpec(n=n, k=64))
    return path.stem, path.read_bytes()


def staged(node: Node, key: str, content: bytes) -> ForeignKernel:
    path = write_staged(node.store.layout.staging, staged_name(key), content)
    return ForeignKernel(
        key=key, sha256=digest(content), signatures=OURS.sign(key, digest(content)), file=path.name
    )


async def test_verified_artifacts_are_published_once_and_listed(tmp_path: Path) -> None:
    node = Node(tmp_path / "store", environment())
    foreign = ForeignKernels(node.store, node.catalog, SignaturePolicy())
    some = [staged(node, *artifact(tmp_path, n)) for n in (64, 128)]
    assert await foreign.publish(some) == (2, 0)
    assert await foreign.publish(some) == (0, 2)
    assert sorted(node.store.keys()) == sorted(one.key for one in some)
    assert await node.catalog.resolve(some[0].key) == some[0].key
    assert node.pool.jobs == []
    await node.close()


async def test_one_kernel_that_the_policy_refuses_keeps_all_of_them_out(tmp_path: Path) -> None:
    node = Node(tmp_path / "store", environment())
    policy = SignaturePolicy(TrustList({"release": OURS.public}), required=True)
    foreign = ForeignKernels(node.store, node.catalog, policy)
    good = staged(node, *artifact(tmp_path, 64))
    key, content = artifact(tmp_path, 128)
    unsigned = ForeignKernel(key=key, sha256=digest(content), file="")
    with pytest.raises(SignatureRefused):
        await foreign.publish([good, unsigned])
    assert list(node.store.keys()) == []
    assert await foreign.publish([good]) == (1, 0)
    await node.close()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"file": "../environment.json"}, InvalidRequest),
        ({"file": "/etc/passwd"}, InvalidRequest),
        ({"file": "import-" + "0" * 64 + ".1.aa"}, InvalidRequest),
        ({"file": "import-{key}/../x"}, InvalidRequest),
        ({"file": "import-{key}.1.aa"}, KernelNotFound),
        ({"key": "zz"}, InvalidRequest),
        ({"sha256": "zz"}, InvalidRequest),
        ({"sha256": "0" * 64, "signatures": ""}, ArtifactDamaged),
    ],
)
async def test_what_is_not_what_was_announced_is_refused(
    change: dict[str, str], error: type[KaasError], tmp_path: Path
) -> None:
    node = Node(tmp_path / "store", environment())
    foreign = ForeignKernels(node.store, node.catalog, SignaturePolicy())
    one = staged(node, *artifact(tmp_path, 64))
    fields = {name: getattr(one, name) for name in ("key", "sha256", "signatures", "file")}
    fields |= {name: value.replace("{key}", one.key) for name, value in change.items()}
    with pytest.raises(error):
        await foreign.publish([ForeignKernel(**fields)])
    assert list(node.store.keys()) == []
    await node.close()


async def test_a_staged_link_is_not_followed(tmp_path: Path) -> None:
    node = Node(tmp_path / "store", environment())
    foreign = ForeignKernels(node.store, node.catalog, SignaturePolicy())
    one = staged(node, *artifact(tmp_path, 64))
    path = node.store.layout.staging / one.file
    path.rename(tmp_path / "aside")
    path.symlink_to(tmp_path / "aside")
    with pytest.raises(ArtifactDamaged):
        await foreign.publish([one])
    assert list(node.store.keys()) == []
    await node.close()


async def test_a_call_has_a_limit(tmp_path: Path) -> None:
    node = Node(tmp_path / "store", environment())
    foreign = ForeignKernels(node.store, node.catalog, SignaturePolicy())
    one = ForeignKernel(key="0" * 64, sha256="0" * 64)
    with pytest.raises(InvalidRequest, match="at once"):
        await foreign.publish([one] * (MAX_KERNELS + 1))
    await node.close()
