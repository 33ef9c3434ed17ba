"""Quarantine: where damaged artifacts go, each beside a record of why."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kaas.cache.atomic import persistently, replace_file
from kaas.cache.layout import StoreLayout
from kaas.proto.errors import KaasError

_LOG = logging.getLogger(__name__)

MAX_ENTRIES = 200
"""Oldest entries go first, so that a failing disk cannot fill itself with evidence."""


class QuarantineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Why, when and what was taken out of service. ``size_bytes`` is of the file as found."""

    key: str
    reason: str
    when_unix: float
    size_bytes: int
    file: str
    details: dict[str, Any] = {}


def put_away(
    layout: StoreLayout, key: str, path: Path, reason: str, details: dict[str, Any] | None = None
) -> QuarantineRecord | None:
    """Move the file at ``path`` into quarantine; ``None`` when there is nothing to move.

    A rename keeps the bytes behind every reader that has them open. When the move fails the file is unlinked;
    when even that fails (a read-only file system) it stays, and verification keeps refusing it.
    """
    now = time.time()
    name = f"{_next_number(layout, now):016d}-{key}"
    destination = layout.quarantine / name
    try:
        # Twice, as below: what passes must not cost the evidence.
        size = persistently(lambda: _move(layout, path, destination), OSError)
    except FileNotFoundError:
        return None
    except OSError as error:
        _LOG.warning("cannot move %s into quarantine: %s", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    record = QuarantineRecord(
        key=key, reason=reason, when_unix=now, size_bytes=size, file=name, details=details or {}
    )
    _LOG.warning("quarantined kernel %s: %s", key[:12], reason)
    beside, content = layout.quarantine / f"{name}.json", msgspec.json.encode(record)
    try:
        persistently(lambda: replace_file(beside, content, layout.staging), KaasError)
    except KaasError as error:
        _LOG.warning("the record of %s could not be written: %s", name, error)
    _drop_oldest(layout)
    return record


def _next_number(layout: StoreLayout, now: float) -> int:
    """Microseconds since 1970, or more when the clock was set back: what came last must sort last."""
    try:
        newest = _names(layout)[-1].partition("-")[0]
    except (OSError, IndexError):
        newest = ""
    return max(int(now * 1e6), int(newest) + 1 if newest.isdecimal() else 0)


def _move(layout: StoreLayout, path: Path, destination: Path) -> int:
    """Returns the file's size. Raises ``FileNotFoundError`` when it is not there."""
    size = path.lstat().st_size
    try:
        path.rename(destination)
    except FileNotFoundError:
        layout.quarantine.mkdir(mode=0o755, exist_ok=True)
        path.rename(destination)
    return size


def quarantined(layout: StoreLayout) -> Iterator[QuarantineRecord]:
    """All records that can be read, oldest first. Raises ``OSError`` when they cannot be listed."""
    try:
        names = _names(layout)
    except FileNotFoundError:
        return
    for name in names:
        if name.endswith(".json"):
            with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
                yield msgspec.json.decode((layout.quarantine / name).read_bytes(), type=QuarantineRecord)


def is_quarantined(layout: StoreLayout, key: str, encoded: bytes) -> bool:
    """Whether these very bytes were taken out of service: then they must not come back from elsewhere."""
    with contextlib.suppress(OSError):
        for name in _names(layout):
            path = layout.quarantine / name
            is_alike = name.endswith(f"-{key}") and path.stat().st_size == len(encoded)
            if is_alike and path.read_bytes() == encoded:
                return True
    return False


def _names(layout: StoreLayout) -> list[str]:
    return sorted(os.listdir(layout.quarantine))  # noqa: PTH208 (only names are wanted)


def _drop_oldest(layout: StoreLayout) -> None:
    with contextlib.suppress(OSError):
        names = sorted(path.name for path in layout.quarantine.iterdir() if path.suffix != ".json")
        for name in names[:-MAX_ENTRIES]:
            for path in (layout.quarantine / name, layout.quarantine / f"{name}.json"):
                with contextlib.suppress(OSError):
                    path.unlink()
