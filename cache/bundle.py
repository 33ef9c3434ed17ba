"""Bundle: many artifacts as one file, a tar of an OCI image layout; reading, verifying and writing it.

Equal artifacts give equal bytes: names in order, no times, no owners, no compression (artifacts compress
their own texts). Nothing in a bundle is a path, so it can be imported anywhere. A bundle is read where it
lies; what it holds is never unpacked to names that it chooses, and no blob is larger than an artifact can be.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from kaas.cache import plain_tar
from kaas.cache.foreign_artifact import Verified, verify_foreign
from kaas.cache.layout import is_key
from kaas.cache.oci_records import (
    BUNDLE_TYPE,
    INDEX_TYPE,
    LAYOUT_FILE,
    MANIFEST_TYPE,
    MAX_KERNELS,
    MAX_MANIFEST_BYTES,
    MAX_SMALL_BYTES,
    Index,
    KernelFacts,
    Layer,
    LayoutFile,
    Record,
    checked_config,
    checked_manifest,
    decode,
    digest_of,
    encode_config,
    encode_index,
    encode_manifest,
    refused,
    sha256,
)
from kaas.cache.signatures import SignaturePolicy, SigningKey, with_signature
from kaas.proto.errors import ArtifactDamaged, StoreUnavailable

BLOBS = "blobs/sha256/"
_DIRECTORIES = frozenset({"blobs", "blobs/sha256"})
_MOST_ENTRIES = MAX_KERNELS + 4 + len(_DIRECTORIES)

Fetch = Callable[[Layer], bytes]


class Bundle:
    """An open bundle file whose structure has been checked; :meth:`verify` checks what it holds."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self.name = name
        self._members = _members_of(file)
        self._small("oci-layout", LayoutFile)
        index = self._small("index.json", Index)
        if len(index.manifests) != 1:
            raise refused("malformed", f"{len(index.manifests)} manifests instead of one", "index.json")
        entry = index.manifests[0]
        kinds = (index.media_type, entry.media_type, entry.artifact_type or BUNDLE_TYPE)
        if kinds != (INDEX_TYPE, MANIFEST_TYPE, BUNDLE_TYPE):
            raise refused("malformed", f"it lists {kinds[1][:80]!r}, {kinds[2][:80]!r}", "index.json")
        if not 0 < entry.size <= MAX_MANIFEST_BYTES:
            raise refused("too_large", f"the manifest claims {entry.size} bytes", "index.json")
        self.digest = digest_of(entry, "index.json")
        self.manifest = self._blob(self.digest, entry.size, "manifest")
        config, self.layers = checked_manifest(self.manifest)
        self.config = self._blob(digest_of(config, "manifest"), config.size, "config")
        self.kernels: Sequence[KernelFacts] = checked_config(self.config, self.layers)
        for layer in self.layers:
            self._member(layer.sha256, layer.size_bytes, f"{layer.key}.kernel")
        self._refuse_foreign({self.digest, sha256(self.config), *(layer.sha256 for layer in self.layers)})

    @classmethod
    def open(cls, path: Path) -> Bundle:
        """Open a bundle. Raises :class:`BundleRefused` with its reason."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise refused("unreadable", f"{path} cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise refused("unreadable", f"{path} is no regular file")
        file = os.fdopen(descriptor, "rb")
        try:
            return cls(file, path.name)
        except OSError as error:
            file.close()
            raise refused("unreadable", f"{path} cannot be read: {error.strerror}") from None
        except BaseException:
            file.close()
            raise

    @property
    def size_bytes(self) -> int:
        """Of the artifacts."""
        return sum(layer.size_bytes for layer in self.layers)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def read(self, layer: Layer) -> bytes:
        """The artifact file of a layer, its digest checked. Raises :class:`BundleRefused`."""
        return self._blob(layer.sha256, layer.size_bytes, f"{layer.key}.kernel")

    def verify(self, policy: SignaturePolicy | None = None) -> Iterator[tuple[Layer, Verified]]:
        """Check every artifact whole, one at each step; nothing of the bundle may be used before the end.

        Raises :class:`BundleRefused` or :class:`SignatureRefused`.
        """
        for layer, facts in zip(self.layers, self.kernels, strict=True):
            yield layer, verified_layer(self.read(layer), layer, facts, policy)

    def _small(self, name: str, record: type[Record]) -> Record:
        member = self._members.get(name)
        if member is None:
            raise refused("missing", f"it has no {name}", name)
        if member.size > MAX_SMALL_BYTES:
            raise refused("too_large", f"{name} has {member.size} bytes", name)
        return decode(self._bytes(member), record, name)

    def _blob(self, digest: str, size: int, entry: str) -> bytes:
        content = self._bytes(self._member(digest, size, entry))
        if sha256(content) != digest:
            raise refused("digest", f"the bytes of {entry} are not those of its digest", entry)
        return content

    def _member(self, digest: str, size: int, entry: str) -> plain_tar.Member:
        member = self._members.get(BLOBS + digest)
        if member is None:
            raise refused("missing", f"the blob of {entry} is not there", entry)
        if member.size != size:
            raise refused("size", f"{entry} has {member.size} bytes, not {size}", entry)
        return member

    def _bytes(self, member: plain_tar.Member) -> bytes:
        try:
            content = os.pread(self._file.fileno(), member.size, member.offset)
        except OSError as error:
            raise refused(
                "unreadable", f"{member.name} cannot be read: {error.strerror}", member.name
            ) from None
        if len(content) != member.size:
            raise refused("truncated", f"{member.name} ends early", member.name)
        return content

    def _refuse_foreign(self, known: set[str]) -> None:
        for name in self._members:
            if name.startswith(BLOBS) and name.removeprefix(BLOBS) not in known:
                raise refused("foreign", f"nothing in the bundle speaks of {name!r}", name)


def verified_layer(
    encoded: bytes, layer: Layer, facts: KernelFacts, policy: SignaturePolicy | None
) -> Verified:
    """Check the artifact of a layer against all that the bundle says of it.

    Raises :class:`BundleRefused` (``artifact``, ``passport``) or :class:`SignatureRefused`.
    """
    try:
        verified = verify_foreign(
            encoded,
            key=layer.key,
            signatures=layer.signatures,
            policy=policy,
            origin=f"{layer.key[:12]}.kernel",
        )
    except ArtifactDamaged as error:
        reason = "passport" if error.details.get("part") == "passport" else "artifact"
        raise refused(reason, error.message, f"{layer.key}.kernel") from None
    if KernelFacts.of(layer.key, verified.passport) != facts:
        raise refused("passport", f"the listing says otherwise of kernel {layer.key[:12]}", "config")
    return verified


def describe(
    artifacts: Iterator[tuple[str, bytes, Verified]], signing_key: SigningKey | None = None
) -> tuple[bytes, bytes]:
    """Manifest and config of artifacts: (key, file, what was verified of it) in the order of the keys."""
    layers: list[Layer] = []
    kernels: list[KernelFacts] = []
    for key, encoded, verified in artifacts:
        digest = sha256(encoded)
        signatures = signing_key.sign(key, digest) if signing_key else ""
        layers.append(Layer(key=key, sha256=digest, size_bytes=len(encoded), signatures=signatures))
        kernels.append(KernelFacts.of(key, verified.passport))
    config = encode_config(kernels)
    return encode_manifest(config, layers), config


def signed_manifest(bundle: Bundle, signing_key: SigningKey) -> bytes:
    """The manifest of a bundle with a signature of each artifact by this key, too."""
    layers = [
        Layer(
            key=layer.key,
            sha256=layer.sha256,
            size_bytes=layer.size_bytes,
            signatures=with_signature(layer.signatures, signing_key.sign(layer.key, layer.sha256)),
        )
        for layer in bundle.layers
    ]
    return encode_manifest(bundle.config, layers)


def write_bundle(path: Path, manifest: bytes, config: bytes, fetch: Fetch) -> None:
    """Write a bundle at ``path``, whole or not at all; ``fetch`` gives the artifact file of a layer.

    Raises :class:`BundleRefused` when what it gives is not the layer's, and :class:`StoreUnavailable` when
    the file cannot be written.
    """
    _, layers = checked_manifest(manifest)
    by_digest = {layer.sha256: layer for layer in layers}
    small = {sha256(manifest): manifest, sha256(config): config}
    staged = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with staged.open("xb") as file:
            _write(file, "oci-layout", LAYOUT_FILE)
            _write(file, "index.json", encode_index(manifest))
            for digest in sorted({*by_digest, *small}):
                content = small[digest] if digest in small else _fetched(fetch, by_digest[digest])
                _write(file, BLOBS + digest, content)
            file.write(plain_tar.END)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be written: {error.strerror}", path=str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            staged.unlink()


def _fetched(fetch: Fetch, layer: Layer) -> bytes:
    content = fetch(layer)
    if len(content) != layer.size_bytes or sha256(content) != layer.sha256:
        entry = f"{layer.key}.kernel"
        raise refused("digest", f"{entry} changed while the bundle was written", entry)
    return content


def _write(file: BinaryIO, name: str, content: bytes) -> None:
    file.write(plain_tar.header(name, len(content)))
    file.write(content)
    file.write(plain_tar.padding(len(content)))


def _members_of(file: BinaryIO) -> dict[str, plain_tar.Member]:
    members: dict[str, plain_tar.Member] = {}
    for member in plain_tar.members(file, directories=_DIRECTORIES, most=_MOST_ENTRIES):
        if member.name not in ("oci-layout", "index.json") and not (
            member.name.startswith(BLOBS) and is_key(member.name.removeprefix(BLOBS))
        ):
            raise refused("foreign", f"the entry {member.name!r} does not belong there", member.name)
        members[member.name] = member
    return members
