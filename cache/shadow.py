"""Shadow: the index's rows on disk, in diskcache, so that a restart need not open every artifact.

Disposable: whatever is wrong with it, it is deleted and the rows come from the artifacts again. It is open
only during a call, by the daemon alone, and holds checksummed JSON text and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import diskcache
import msgspec

from kaas.cache.layout import StoreLayout, is_key

_LOG = logging.getLogger(__name__)

SCHEMA = "kaas kernel index 3"
"""Raised whenever the rows change; a shadow of another schema is deleted."""

ROWS_AT_ONCE = 1000
_SCHEMA_ROW = "schema"
_RAW = 1  # diskcache's mode for plain SQLite values
_LOCK_TIMEOUT_S = 0.5
_PASSING = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
)
_SETTINGS = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 1 << 40,
    "statistics": 0,
    "tag_index": 0,
    "timeout": _LOCK_TIMEOUT_S,
}


class ForeignRowError(ValueError):
    """A row that this code cannot have written, for instance a pickled one."""


class ShadowBusyError(Exception):
    """Nothing could be written just now (a full or read-only disk); the shadow is as it was."""


class ShadowLostError(Exception):
    """The shadow was unusable and has been deleted: every row has to be written again."""


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One value: a row and the CRC-32 of its key and exactly those bytes."""

    crc: int
    row: msgspec.Raw


_SEALED_DECODER = msgspec.json.Decoder(_Sealed)


class JsonOnlyDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache ships no types
    """A diskcache serialiser for text keys and JSON text, all of it inside the database.

    diskcache's own unpickles whatever a row claims to be pickled and opens or deletes whatever file it names,
    for whoever can write the database. Here such a row is refused unread and no file is ever touched.
    """

    def hash(self, key: Any) -> int:
        """A stable hash of a text key."""
        return zlib.crc32(_text(key).encode())

    def put(self, key: Any) -> tuple[str, bool]:
        """Keys are stored as they are."""
        return _text(key), True

    def get(self, key: Any, raw: bool) -> str:
        """Keys are returned as they are."""
        if not raw:
            raise ForeignRowError("a key is not plain text")
        return _text(key)

    def store(self, value: Any, read: bool, key: Any = None) -> tuple[int, int, None, str]:
        """JSON text, never a file and never a pickle."""
        return 0, _RAW, None, _text(value)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> str:
        """JSON text only; anything else is foreign."""
        if mode != _RAW or filename is not None:
            raise ForeignRowError(f"a row is stored in mode {mode}, not as text")
        return _text(value)

    def filename(self, key: Any = None, value: Any = None) -> tuple[str, str]:
        """No row has a file."""
        raise ForeignRowError("rows have no files")

    def remove(self, file_path: str) -> None:
        """No row has a file, so a row that names one must not get it deleted."""


class IndexShadow:
    """Rows (JSON bytes) by kernel key, on disk."""

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout

    def read(self) -> dict[str, bytes]:
        """Every row, all intact. Raises :class:`ShadowLostError` otherwise; the shadow is then deleted."""
        found: dict[str, bytes] = {}
        for rows in self.parts():
            found |= rows
        return found

    def parts(self) -> Iterator[dict[str, bytes]]:
        """:meth:`read` a bounded number of rows at a time; raises perhaps after some of them."""
        if not os.path.lexists(self._layout.index):
            return
        try:
            with self._opened() as cache:
                expected = len(cache)
            last, number = -1, 0
            while True:
                rows, last, found = _rows_after(str(self._layout.index / "cache.db"), last)
                number += found
                if not found:
                    break
                if rows:
                    yield rows
            if number != expected:  # rows that SQLite passes over could never be written again either
                raise ForeignRowError(f"{number} rows are found where {expected} are counted")
        except Exception as error:  # sqlite, OS, foreign or garbled rows: any damage at all
            raise self._lost(error) from error

    def write(self, changes: Mapping[str, bytes | None]) -> None:
        """Set rows, or delete those whose value is ``None``, in one transaction.

        Raises :class:`ShadowBusyError` or :class:`ShadowLostError`.
        """
        try:
            with self._opened() as cache, cache.transact():
                for key, row in changes.items():
                    if row is None:
                        cache.delete(key)
                    else:
                        cache.set(key, _sealed(key, row))
        except Exception as error:  # as above
            if _is_passing(error):
                raise ShadowBusyError(str(error)) from error
            raise self._lost(error) from error

    @contextlib.contextmanager
    def _opened(self) -> Iterator[diskcache.Cache]:
        directory = self._layout.index
        if directory.is_symlink():
            raise ForeignRowError("the index is a symbolic link")
        directory.mkdir(mode=0o700, exist_ok=True)
        is_new = not (directory / "cache.db").exists()
        if not is_new:
            _probe_lock(str(directory / "cache.db"))
        cache = diskcache.Cache(str(directory), disk=JsonOnlyDisk, **_SETTINGS)
        try:
            if is_new:
                cache.set(_SCHEMA_ROW, SCHEMA)
            elif cache.get(_SCHEMA_ROW) != SCHEMA:
                raise ForeignRowError("its schema is another one")
            yield cache
        finally:
            cache.close()

    def _lost(self, error: Exception) -> ShadowLostError:
        _LOG.warning("the index at %s is unusable (%s) and is made anew", self._layout.index, error)
        doomed = self._layout.staging / f"index.{os.getpid()}.{os.urandom(6).hex()}"
        try:
            self._layout.index.rename(doomed)
        except OSError:
            doomed = self._layout.index
        with contextlib.suppress(OSError):  # what cannot be removed now is found unusable again
            if stat.S_ISDIR(doomed.lstat().st_mode):
                shutil.rmtree(doomed, ignore_errors=True)
            else:
                doomed.unlink()
        return ShadowLostError(str(error))


def indexed_keys(layout: StoreLayout) -> set[str] | None:
    """Keys of all rows, unchecked and without changing anything; ``None`` when they cannot be read."""
    found: set[str] = set()
    last = -1
    try:
        while True:
            # A database that nobody has open is read without making SQLite's files beside it.
            is_at_rest = not (layout.index / "cache.db-wal").exists()
            rows, last, count = _rows_after(str(layout.index / "cache.db"), last, is_at_rest=is_at_rest)
            if not count:
                return found
            found |= rows.keys()
    except Exception:  # as in IndexShadow
        return None


def _probe_lock(database: str) -> None:
    """Fail now if another process holds the database locked; diskcache itself would wait for a minute."""
    connection = sqlite3.connect(database, timeout=_LOCK_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def _rows_after(database: str, last: int, *, is_at_rest: bool = False) -> tuple[dict[str, bytes], int, int]:
    """The next rows by row number, checked like :class:`JsonOnlyDisk` checks them; one query for all.

    Returns the rows, the last row's number, and how many rows there were, the schema's included.
    """
    address = f"{Path(database).as_uri()}?mode=ro{'&immutable=1' * is_at_rest}"
    connection = sqlite3.connect(address, uri=True, timeout=_LOCK_TIMEOUT_S)
    try:
        found = connection.execute(
            "SELECT rowid, key, raw, mode, filename, value FROM Cache WHERE rowid > ? ORDER BY rowid LIMIT ?",
            (last, ROWS_AT_ONCE),
        ).fetchall()
    finally:
        connection.close()
    rows: dict[str, bytes] = {}
    for number, key, raw, mode, filename, value in found:
        last = number
        if not raw:
            raise ForeignRowError("a key is not plain text")
        if mode != _RAW or filename is not None:
            raise ForeignRowError(f"a row is stored in mode {mode}, not as text")
        if _is_row(_text(key)):
            rows[key] = _unsealed(key, _text(value))
    return rows, last, len(found)


def _is_passing(error: Exception) -> bool:
    """Whether the trouble is the disk's state rather than the shadow's, so that trying again later helps."""
    if isinstance(error, sqlite3.OperationalError):
        primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return primary in _PASSING
    return isinstance(error, OSError) and not isinstance(error, (FileExistsError, NotADirectoryError))


def _is_row(key: str) -> bool:
    if key == _SCHEMA_ROW:
        return False
    if not is_key(key):
        raise ForeignRowError("a row's key is no kernel key")
    return True


def _checksum(key: str, row: bytes) -> int:
    return zlib.crc32(row, zlib.crc32(key.encode()))


def _sealed(key: str, row: bytes) -> str:
    return msgspec.json.encode(_Sealed(crc=_checksum(key, row), row=msgspec.Raw(row))).decode()


def _unsealed(key: str, text: str) -> bytes:
    sealed = _SEALED_DECODER.decode(text)
    row = bytes(sealed.row)
    if _checksum(key, row) != sealed.crc:
        raise ForeignRowError("a row's checksum differs")
    return row


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ForeignRowError(f"{type(value).__name__} is not text")
    return value
