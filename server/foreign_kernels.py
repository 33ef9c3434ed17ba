"""Foreign kernels: artifacts of another node, published here once they are verified and the policy agrees.

They come through the store's staging directory, which only the store's owner may write to: who can do that
could write artifacts there as well, so it gains nothing that it did not have, and no other caller gains
anything. The name of a file in staging is all that crosses the socket.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import msgspec

from kaas.cache.artifact import read_artifact_file
from kaas.cache.foreign_artifact import Verified, staged_name, verify_foreign
from kaas.cache.layout import is_key, require_key
from kaas.cache.oci_records import sha256
from kaas.cache.signatures import SignaturePolicy
from kaas.cache.store import Store
from kaas.proto.errors import ArtifactDamaged, InvalidRequest, KernelNotFound
from kaas.server.catalog import Catalog, summarize_passport

MAX_KERNELS = 500
"""Of one call."""


class ForeignKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact to publish; without a ``file`` in staging only its signatures are judged."""

    key: str
    sha256: str
    signatures: str = ""
    file: str = ""


class ForeignKernels:
    """Publishes what others compiled."""

    def __init__(self, store: Store, catalog: Catalog, policy: SignaturePolicy) -> None:
        self._store = store
        self._catalog = catalog
        self._policy = policy

    async def publish(self, kernels: Sequence[ForeignKernel]) -> tuple[int, int]:
        """Judge all signatures, then publish those with a file; how many were added, and were there before.

        Raises :class:`InvalidRequest`, :class:`SignatureRefused` (then nothing is published),
        :class:`KernelNotFound` (no such file), :class:`ArtifactDamaged`, :class:`StoreFull` or
        :class:`StoreUnavailable`; then those before it are published.
        """
        if len(kernels) > MAX_KERNELS:
            raise InvalidRequest(
                f"{len(kernels)} kernels at once", field="kernels", legal=f"at most {MAX_KERNELS}"
            )
        for kernel in kernels:
            _check(kernel)
        await asyncio.to_thread(self._judge, kernels)
        added = present = 0
        for kernel in kernels:
            if not kernel.file:
                continue
            was_there = self._store.layout.artifact_path(kernel.key).exists()
            size, verified = await asyncio.to_thread(self._publish, kernel)
            if was_there:
                present += 1
                continue
            added += 1
            self._catalog.added(
                {
                    **summarize_passport(verified.passport),
                    "size_bytes": size,
                    "created_unix": verified.created_unix,
                    "compile_seconds": verified.compile_seconds,
                }
            )
            holdings = self._catalog.holdings
            holdings.memory.drop(kernel.key)
            holdings.audit.note("stored", key=kernel.key, origin="import", signer=verified.signer)
        self._catalog.holdings.news.set()
        return added, present

    def _judge(self, kernels: Sequence[ForeignKernel]) -> None:
        for kernel in kernels:
            self._policy.judge(kernel.key, kernel.sha256, kernel.signatures)

    def _publish(self, kernel: ForeignKernel) -> tuple[int, Verified]:
        try:
            encoded = read_artifact_file(str(self._store.layout.staging / kernel.file))
        except FileNotFoundError:
            raise KernelNotFound(
                f"{kernel.file[:120]} is not in the staging directory of {self._store.root}",
                hint="the daemon serves another store: name it with KAAS_STORE",
                key=kernel.key,
            ) from None
        if sha256(encoded) != kernel.sha256:
            raise ArtifactDamaged(
                f"{kernel.key[:12]}: its SHA-256 differs from the one that was announced", part="file"
            )
        verified = verify_foreign(
            encoded,
            key=kernel.key,
            signatures=kernel.signatures,
            policy=self._policy,
            origin=f"{kernel.key[:12]}.kernel",
        )
        self._store.publish(kernel.key, encoded)
        return len(encoded), verified


def _check(kernel: ForeignKernel) -> None:
    require_key(kernel.key)
    if not is_key(kernel.sha256):
        raise InvalidRequest("no SHA-256", field="sha256", legal="64 lower-case hexadecimal digits")
    if kernel.file and re.fullmatch(rf"{staged_name(kernel.key)}[.0-9a-f]{{1,40}}", kernel.file) is None:
        raise InvalidRequest(
            f"{kernel.file[:120]!r} is no name of a foreign artifact in staging",
            field="file",
            legal="import-KEY.NUMBER.HEX, as it was staged",
        )
