"""The kernels of a manifest, one for each spec and target: what a node should hold.

:mod:`kaas.client.manifest_document` says what a manifest is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kaas.client.manifest_document import ManifestDocument, parse_document, read_document
from kaas.proto.errors import InvalidManifest

if TYPE_CHECKING:
    from kaas.kernel_library.spec import KernelSpec


class Entry(NamedTuple):
    """One kernel to warm; ``line`` is where its entry begins in the manifest.

    ``soc_name`` and ``cann`` are empty where the node's own are meant; ``weight`` is the entry's.
    """

    spec: KernelSpec
    soc_name: str
    line: int
    cann: str = ""
    weight: float = 1.0


def read_manifest(path: Path) -> list[Entry]:
    """The checked entries of a manifest file, ``-`` being standard input.

    Raises :class:`InvalidManifest` naming the entry, its line, and what is wrong with it.
    """
    return entries_of(read_document(path))


def parse_manifest(text: str, name: str = "manifest") -> list[Entry]:
    """The checked entries of a manifest's text; ``name`` is used in messages."""
    return entries_of(parse_document(text, name))


def entries_of(document: ManifestDocument) -> list[Entry]:
    """One for each kernel and target, in the manifest's order."""
    return [
        Entry(spec, target.soc_name, entry.line, target.cann, entry.weight)
        for entry in document.entries
        for target in document.targets_of(entry)
        for spec in entry.kernels()
    ]


def on_toolchain(entries: Sequence[Entry], cann_version: str) -> list[Entry]:
    """The entries that a node with this CANN is to hold. Raises :class:`InvalidManifest` if there is none."""
    found = [entry for entry in entries if entry.cann in ("", cann_version)]
    if not found:
        others = ", ".join(sorted({entry.cann for entry in entries}))
        raise InvalidManifest(
            f"the manifest is for CANN {others}; this node has {cann_version}",
            field="targets.cann",
            legal=[cann_version],
        )
    return found
