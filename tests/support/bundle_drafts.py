"""A bundle under construction whose every record and byte a test can get wrong before it is packed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
from support.client_store import PublishedStore

from kaas.cache import plain_tar
from kaas.cache.artifact import encode_artifact, open_artifact
from kaas.cache.oci_records import (
    BUNDLE_TYPE,
    CONFIG_TYPE,
    INDEX_TYPE,
    KERNEL_TYPE,
    LAYOUT_FILE,
    MANIFEST_TYPE,
    SIGNATURES,
    TITLE,
    KernelFacts,
)
from kaas.cache.signatures import SigningKey
from kaas.kernel_library.families.gemm import GemmSpec


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Draft:
    """Three kernels; ``pack`` makes manifest and index from what is in the fields by then."""

    def __init__(self, folder: Path, signing_key: SigningKey | None = None) -> None:
        store = PublishedStore(folder)
        self.files: dict[str, bytes] = {}
        self.facts: list[dict[str, Any]] = []
        for n in (64, 128, 192):
            path = store.add(GemmSpec(n=n, k=64))
            self.files[path.stem] = path.read_bytes()
        self.files = dict(sorted(self.files.items()))
        for key, content in self.files.items():
            with open_artifact(store.layout.artifact_path(key)) as artifact:
                self.facts.append(msgspec.to_builtins(KernelFacts.of(key, artifact.passport)))
            assert content
        self.keys = list(self.files)
        self.layers: list[dict[str, Any]] = [self.layer(key, signing_key) for key in self.keys]
        self.format_version = 1
        self.manifest_changes: dict[str, Any] = {}
        self.index_changes: dict[str, Any] = {}
        self.entry_changes: dict[str, Any] = {}
        self.layout = LAYOUT_FILE
        self.extra: list[tuple[bytes, bytes]] = []
        """Further (header, content) at the end."""
        self.left_out: set[str] = set()

    def layer(self, key: str, signing_key: SigningKey | None = None) -> dict[str, Any]:
        content = self.files[key]
        annotations = {TITLE: f"{key}.kernel"}
        if signing_key:
            annotations[SIGNATURES] = signing_key.sign(key, digest(content))
        return {
            "mediaType": KERNEL_TYPE,
            "digest": f"sha256:{digest(content)}",
            "size": len(content),
            "annotations": annotations,
        }

    def replace(self, number: int, content: bytes) -> None:
        """Another artifact file for a kernel, its layer saying so."""
        key = self.keys[number]
        self.files[key] = content
        self.layers[number] |= {"digest": f"sha256:{digest(content)}", "size": len(content)}

    def config(self) -> bytes:
        return msgspec.json.encode({"format_version": self.format_version, "kernels": self.facts})

    def manifest(self, config: bytes) -> bytes:
        return msgspec.json.encode(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "artifactType": BUNDLE_TYPE,
                "config": {
                    "mediaType": CONFIG_TYPE,
                    "digest": f"sha256:{digest(config)}",
                    "size": len(config),
                },
                "layers": self.layers,
            }
            | self.manifest_changes
        )

    def entries(self) -> list[tuple[str, bytes]]:
        config = self.config()
        manifest = self.manifest(config)
        entry = {
            "mediaType": MANIFEST_TYPE,
            "digest": f"sha256:{digest(manifest)}",
            "size": len(manifest),
        } | self.entry_changes
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]} | self.index_changes
        blobs = {digest(blob): blob for blob in (config, manifest, *self.files.values())}
        named = [
            ("oci-layout", self.layout),
            ("index.json", msgspec.json.encode(index)),
            *((f"blobs/sha256/{name}", content) for name, content in sorted(blobs.items())),
        ]
        return [(name, content) for name, content in named if name not in self.left_out]

    def pack(self) -> bytes:
        parts = []
        for name, content in self.entries():
            parts += [plain_tar.header(name, len(content)), content, plain_tar.padding(len(content))]
        for header, content in self.extra:
            parts += [header, content, plain_tar.padding(len(content))]
        return b"".join([*parts, plain_tar.END])


def header(
    name: bytes, *, kind: bytes = b"0", size: int = 0, link: bytes = b"", prefix: bytes = b""
) -> bytes:
    """Any tar header at all, with the right checksum."""
    block = bytearray(plain_tar.header("x", 0))
    block[:100] = name.ljust(100, b"\0")
    block[124:136] = b"%011o\0" % size
    block[156:157] = kind
    block[157:257] = link.ljust(100, b"\0")
    block[345:500] = prefix.ljust(155, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def repacked(encoded: bytes, **changes: Any) -> bytes:
    """An artifact made of another with some parts exchanged, all of its digests right."""
    from kaas.cache.artifact import Artifact

    with Artifact(encoded) as artifact:
        parts: dict[str, Any] = {
            "passport": artifact.passport,
            "launch": artifact.launch,
            "choices": artifact.choices,
            "image": bytes(artifact.image),
            "source": artifact.source,
            "log": artifact.log,
            "created_unix": artifact.created_unix,
            "compile_seconds": artifact.compile_seconds,
        }
    return encode_artifact(**(parts | changes))
