"""Audit log: JSON lines in the store, two files of bounded size, of which the older one goes.

Losing lines costs history and never an answer, so trouble with the files is counted and not raised.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kaas.cache.layout import StoreLayout
from kaas.cache.placement import PRIVATE_MODE, make_directory

_LOG = logging.getLogger(__name__)

FILE_MODE = 0o600
"""It says who did what, so only the daemon's user reads it; others ask the daemon."""


class AuditLog:
    """Appends and reads lines; ``max_bytes`` bounds both files together, 0 turns the log off."""

    def __init__(self, layout: StoreLayout, max_bytes: int) -> None:
        self._layout = layout
        self._max_file_bytes = max_bytes // 2
        self._has_trouble = False
        self._may_follow_torn_line = True
        self.lost_lines = 0

    @property
    def is_on(self) -> bool:
        """Whether anything is written."""
        return self._max_file_bytes > 0

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines (without line ends); those that cannot be written are lost and counted."""
        if not self.is_on or not lines:
            return
        try:
            self._append(b"".join(line + b"\n" for line in lines))
        except OSError as error:
            self.lost_lines += len(lines)
            if not self._has_trouble:
                _LOG.warning("the audit log cannot be written: %s", error)
            self._has_trouble = True
        else:
            self._has_trouble = False

    def records(self, containing: bytes = b"") -> Iterator[dict[str, Any]]:
        """Records whose line has ``containing`` in it, oldest first; torn lines are passed over."""
        for path in (self._layout.older_audit_file, self._layout.audit_file):
            try:
                with path.open("rb") as file:
                    for line in file:
                        if containing in line:
                            with contextlib.suppress(ValueError, RecursionError):
                                record = msgspec.json.decode(line)
                                if isinstance(record, dict):
                                    yield record
            except OSError:
                continue

    def _append(self, content: bytes) -> None:
        path = self._layout.audit_file
        try:
            descriptor = _opened(path)
        except FileNotFoundError:
            make_directory(path.parent, PRIVATE_MODE)
            descriptor = _opened(path)
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(content) > self._max_file_bytes:
                path.replace(self._layout.older_audit_file)
                os.close(descriptor)
                descriptor = -1
                descriptor = _opened(path)
                size = 0
            if size and self._may_follow_torn_line:
                content = b"\n" + content
            rest = memoryview(content)
            try:
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:
                # Half a line would spoil the next one.
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
            self._may_follow_torn_line = False
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _opened(path: os.PathLike[str]) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, FILE_MODE)
