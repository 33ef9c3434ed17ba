"""OCI records: a bundle as an image of the OCI image specification 1.1, one layer per artifact.

One layer per artifact, because layers are what registries, their mirrors and peer-to-peer layers keep once: a
bundle of a release that shares nine kernels in ten with the last one moves a tenth. A layer is the artifact
file as it is, without tar or compression around it, so that its digest is the same in every bundle.

    manifest   artifactType bundle, config: what is in it, layers: artifacts in the order of their keys
    layer      annotations: title "<key>.kernel", and signatures if there are any
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, TypeVar

import msgspec

from kaas.cache.artifact import MAX_FILE_BYTES
from kaas.cache.layout import ARTIFACT_SUFFIX, is_key
from kaas.proto.canonical import canonical_json
from kaas.proto.errors import BundleRefused
from kaas.proto.passport import Passport

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
BUNDLE_TYPE = "application/vnd.kaas.bundle.v1"
CONFIG_TYPE = "application/vnd.kaas.bundle.config.v1+json"
KERNEL_TYPE = "application/vnd.kaas.kernel.v1"

TITLE = "org.opencontainers.image.title"
SIGNATURES = "vnd.kaas.signatures"

FORMAT_VERSION = 1
MAX_KERNELS = 8000
"""Of one bundle: registries take manifests of up to 4 MiB, and a signed layer needs some 400 bytes."""

MAX_MANIFEST_BYTES = 4 << 20
MAX_CONFIG_BYTES = 16 << 20
MAX_SMALL_BYTES = 64 << 10
"""Of ``oci-layout`` and ``index.json``."""

Record = TypeVar("Record")


class Descriptor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A blob: what it is, its digest and its size."""

    media_type: str = msgspec.field(name="mediaType")
    digest: str
    size: int
    annotations: dict[str, str] = {}
    artifact_type: str = msgspec.field(name="artifactType", default="")


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The bundle's manifest."""

    schema_version: Literal[2] = msgspec.field(name="schemaVersion")
    media_type: str = msgspec.field(name="mediaType")
    artifact_type: str = msgspec.field(name="artifactType")
    config: Descriptor
    layers: tuple[Descriptor, ...]


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``index.json``; tools may have added a name to its one entry."""

    schema_version: Literal[2] = msgspec.field(name="schemaVersion")
    media_type: str = msgspec.field(name="mediaType", default=INDEX_TYPE)
    manifests: tuple[Descriptor, ...]
    annotations: dict[str, str] = {}


class LayoutFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``oci-layout``."""

    image_layout_version: Literal["1.0.0"] = msgspec.field(name="imageLayoutVersion")


class KernelFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a listing says of a kernel; taken from its passport, and compared with it again."""

    key: str
    spec: dict[str, Any]
    soc_name: str
    cann_version: str
    toolchain_kind: str

    @classmethod
    def of(cls, key: str, passport: Passport) -> KernelFacts:
        """The facts of a kernel."""
        return cls(
            key=key,
            spec=passport.spec,
            soc_name=passport.target.soc_name,
            cann_version=passport.toolchain.cann_version,
            toolchain_kind=passport.toolchain.kind,
        )


class BundleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The config blob: what can be known without fetching a layer."""

    format_version: int
    kernels: tuple[KernelFacts, ...]


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact of a bundle."""

    key: str
    sha256: str
    size_bytes: int
    signatures: str


LAYOUT_FILE = canonical_json({"imageLayoutVersion": "1.0.0"})


def sha256(content: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(content).hexdigest()


def encode_config(kernels: list[KernelFacts]) -> bytes:
    """The config blob of kernels in the order of their keys."""
    return canonical_json(BundleConfig(format_version=FORMAT_VERSION, kernels=tuple(kernels)))


def encode_manifest(config: bytes, layers: list[Layer]) -> bytes:
    """The manifest; equal input gives equal bytes. Raises :class:`BundleRefused` (``too_many``)."""
    content = canonical_json(
        Manifest(
            schema_version=2,
            media_type=MANIFEST_TYPE,
            artifact_type=BUNDLE_TYPE,
            config=Descriptor(media_type=CONFIG_TYPE, digest=f"sha256:{sha256(config)}", size=len(config)),
            layers=tuple(map(_descriptor, layers)),
        )
    )
    if len(layers) > MAX_KERNELS or len(content) > MAX_MANIFEST_BYTES:
        raise BundleRefused(
            f"{len(layers)} kernels do not fit into one bundle",
            hint=f"at most {MAX_KERNELS}: make several, by manifest or by keys",
            reason="too_many",
        )
    return content


def encode_index(manifest: bytes) -> bytes:
    """``index.json`` for the manifest."""
    entry = Descriptor(
        media_type=MANIFEST_TYPE,
        digest=f"sha256:{sha256(manifest)}",
        size=len(manifest),
        artifact_type=BUNDLE_TYPE,
    )
    return canonical_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]})


def decode(content: bytes, record: type[Record], entry: str) -> Record:
    """A JSON blob. Raises :class:`BundleRefused` (``malformed``)."""
    try:
        return msgspec.json.decode(content, type=record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refused("malformed", f"{entry} is not a bundle's: {error}", entry) from None


def digest_of(descriptor: Descriptor, entry: str) -> str:
    """The hex digits of a descriptor's SHA-256. Raises :class:`BundleRefused`."""
    algorithm, _, digits = descriptor.digest.partition(":")
    if algorithm != "sha256" or not is_key(digits):
        raise refused("malformed", f"{entry} names the digest {descriptor.digest[:80]!r}", entry)
    return digits


def checked_manifest(content: bytes) -> tuple[Descriptor, list[Layer]]:
    """The config's descriptor and the layers of a manifest, as far as it can be checked alone.

    Raises :class:`BundleRefused`.
    """
    manifest = decode(content, Manifest, "manifest")
    if (manifest.media_type, manifest.artifact_type) != (MANIFEST_TYPE, BUNDLE_TYPE):
        kind = f"{manifest.artifact_type or manifest.media_type}"[:80]
        raise refused("malformed", f"this is {kind!r}, no bundle of kernels", "manifest")
    if manifest.config.media_type != CONFIG_TYPE:
        raise refused("malformed", "the config is not a bundle's", "manifest")
    digest_of(manifest.config, "manifest")
    if not 0 <= manifest.config.size <= MAX_CONFIG_BYTES:
        raise refused("too_large", f"the config claims {manifest.config.size} bytes", "config")
    if len(manifest.layers) > MAX_KERNELS:
        raise refused("too_many", f"{len(manifest.layers)} kernels; at most {MAX_KERNELS}", "manifest")
    layers = [_layer(descriptor) for descriptor in manifest.layers]
    keys = [layer.key for layer in layers]
    if len(set(keys)) != len(keys):
        raise refused("duplicate", "a kernel is there twice", "manifest")
    if keys != sorted(keys):
        raise refused("malformed", "the kernels are not in the order of their keys", "manifest")
    return manifest.config, layers


def checked_config(content: bytes, layers: list[Layer]) -> tuple[KernelFacts, ...]:
    """What the config says of the layers' kernels. Raises :class:`BundleRefused`."""
    config = decode(content, BundleConfig, "config")
    if config.format_version != FORMAT_VERSION:
        raise refused("malformed", f"format {config.format_version} is not {FORMAT_VERSION}", "config")
    if [facts.key for facts in config.kernels] != [layer.key for layer in layers]:
        raise refused("malformed", "it lists other kernels than the manifest", "config")
    return config.kernels


def refused(reason: str, problem: str, entry: str = "") -> BundleRefused:
    """The refusal of a bundle; ``reason`` is one word for programs."""
    return BundleRefused(f"the bundle is refused: {problem}", reason=reason, entry=entry or None)


def _descriptor(layer: Layer) -> Descriptor:
    annotations = {TITLE: f"{layer.key}{ARTIFACT_SUFFIX}"}
    if layer.signatures:
        annotations[SIGNATURES] = layer.signatures
    return Descriptor(
        media_type=KERNEL_TYPE,
        digest=f"sha256:{layer.sha256}",
        size=layer.size_bytes,
        annotations=annotations,
    )


def _layer(descriptor: Descriptor) -> Layer:
    title = descriptor.annotations.get(TITLE, "")
    key = title.removesuffix(ARTIFACT_SUFFIX)
    if descriptor.media_type != KERNEL_TYPE or key == title or not is_key(key):
        raise refused("foreign", f"the layer {title[:80]!r} is no kernel", "manifest")
    if set(descriptor.annotations) - {TITLE, SIGNATURES}:
        raise refused("malformed", f"the layer {key[:12]} has unknown annotations", "manifest")
    if not 0 < descriptor.size <= MAX_FILE_BYTES:
        raise refused("too_large", f"the layer {key[:12]} claims {descriptor.size} bytes", title)
    return Layer(
        key=key,
        sha256=digest_of(descriptor, title),
        size_bytes=descriptor.size,
        signatures=descriptor.annotations.get(SIGNATURES, ""),
    )
