"""The manifest that a node's readiness waits for, as entries of a question for coverage."""

from __future__ import annotations

from pathlib import Path

from kaas.client.manifest import read_manifest
from kaas.proto.errors import InvalidConfig, InvalidManifest
from kaas.server.coverage import CoverageEntry


def read_ready_manifest(path: str) -> list[CoverageEntry]:
    """Every kernel of the file, for whatever target. Raises :class:`InvalidConfig` with the line at fault."""
    try:
        entries = read_manifest(Path(path))
    except InvalidManifest as fault:
        details = {**fault.details, "field": "ready_manifest"}
        raise InvalidConfig(f"ready_manifest: {fault.message}", hint=fault.hint, **details) from None
    return [
        CoverageEntry(
            spec=entry.spec.to_record(), soc_name=entry.soc_name, cann=entry.cann, weight=entry.weight
        )
        for entry in entries
    ]
