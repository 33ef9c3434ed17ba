"""Index: what the store holds, for lists and prefix look-ups. Disposable; never holds artifact bytes.

The index proper is a dict in memory. diskcache keeps its shadow on disk, so that a restart need not open every
artifact; when the shadow is missing, damaged or foreign it is deleted and made again from the artifacts.
Only the daemon opens it, from one thread at a time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diskcache

from kaas.cache.artifact import Artifact
from kaas.cache.layout import StoreLayout
from kaas.cache.store import Store
from kaas.proto.canonical import canonical_json
from kaas.proto.errors import InvalidRequest

_LOG = logging.getLogger(__name__)

Row = dict[str, Any]
"""JSON-able facts of one kernel; ``key`` is its kernel key, ``spec`` its plain spec."""

SCHEMA = "1"
FLUSH_INTERVAL_S = 5.0
"""How long a use may go unwritten; losing it costs only the order of a list."""

_RAW = 1  # diskcache's mode for plain SQLite values


class ForeignRowError(ValueError):
    """A row that this index cannot have written, for instance a pickled one."""


class JsonOnlyDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache ships no types
    """A diskcache serialiser that knows text keys and JSON values only.

    diskcache's own would unpickle whatever a row claims to be pickled, and so run code for whoever can write
    the file. Here such a row is refused unread.
    """

    def hash(self, key: Any) -> int:
        """Stable hash of a text key."""
        return int(super().hash(self._text(key)))

    def put(self, key: Any) -> tuple[str, bool]:
        """Keys are stored as they are."""
        return self._text(key), True

    def get(self, key: Any, raw: bool) -> str:
        """Keys are returned as they are."""
        if not raw:
            raise ForeignRowError("a key is not plain text")
        return self._text(key)

    def store(self, value: Any, read: bool, key: Any = None) -> tuple[int, int, None, str]:
        """Values become JSON text inside the database; never a file, never a pickle."""
        return 0, _RAW, None, json.dumps(value, allow_nan=False)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """JSON text only; anything else is foreign."""
        if mode != _RAW or filename is not None or not isinstance(value, str):
            raise ForeignRowError(f"a row is stored in mode {mode}, not as JSON text")
        return json.loads(value)

    @staticmethod
    def _text(key: Any) -> str:
        if not isinstance(key, str):
            raise ForeignRowError("a key is not plain text")
        return key


class KernelIndex:
    """Rows by kernel key, most recently used first."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._directory = StoreLayout(root).index
        self._clock = clock
        self._rows: dict[str, Row] = {}
        self._unwritten: set[str] = set()
        self._flushed = clock()
        self._shadow = self._open()

    def rebuild(self, store: Store, summarize: Callable[[Artifact], Row]) -> None:
        """Bring the index in line with ``store``: rows of absent kernels go, missing rows are read anew."""
        known = self._read_shadow()
        self._rows = {}
        for key in store.keys():
            row = known.get(key)
            if row is None:
                artifact = store.load(key)
                if artifact is None:
                    continue
                with artifact:
                    row = summarize(artifact)
                self._unwritten.add(key)
            self._rows[key] = row
        for key in known.keys() - self._rows.keys():
            self._write(key, None)
        self._flush()

    def record(self, row: Row) -> None:
        """Add or replace the row of a published kernel."""
        key = row["key"]
        self._rows[key] = {"hits": 0, "last_used_unix": self._clock(), **row}
        self._unwritten.add(key)
        self._flush()

    def touch(self, key: str) -> None:
        """Count a use. Written to disk in batches, so that a hit costs no write."""
        row = self._rows.get(key)
        if row is None:
            return
        row["hits"] = row.get("hits", 0) + 1
        row["last_used_unix"] = self._clock()
        self._unwritten.add(key)
        if self._clock() - self._flushed >= FLUSH_INTERVAL_S:
            self._flush()

    def forget(self, key: str) -> None:
        """Drop the row of a kernel that is gone."""
        if self._rows.pop(key, None) is not None:
            self._write(key, None)

    def get(self, key: str) -> Row | None:
        """A copy of one row."""
        row = self._rows.get(key)
        return dict(row) if row is not None else None

    def keys_with_prefix(self, prefix: str, *, limit: int) -> list[str]:
        """Up to ``limit`` keys that begin with ``prefix``, in order."""
        return sorted(key for key in self._rows if key.startswith(prefix))[:limit]

    def list(self, filters: Mapping[str, str], page_size: int, page_token: str) -> tuple[list[Row], str, int]:
        """One page of matching rows, the next page's token (empty on the last), and how many match in all.

        ``filters`` compares fields without case; ``text`` is looked for in key and canonical spec. A kernel
        used while somebody pages may move to the front; it is then not listed twice.
        """
        after = _parse_token(page_token)
        matching = sorted(
            (row for row in self._rows.values() if _matches(row, filters)), key=_listing_position
        )
        rest = [row for row in matching if after is None or _listing_position(row) > after]
        page = rest[:page_size]
        more = len(rest) > len(page) and page
        token = "{0!r}/{1}".format(*_listing_position(page[-1])) if more else ""
        return [dict(row) for row in page], token, len(matching)

    def close(self) -> None:
        """Write what is unwritten and close the shadow."""
        self._flush()
        if self._shadow is not None:
            with contextlib.suppress(sqlite3.Error, OSError):
                self._shadow.close()
            self._shadow = None

    def _open(self) -> diskcache.Cache | None:
        """The shadow on disk, made anew if what lies there cannot be used; ``None`` when none can be had."""
        for attempt in ("open", "recreate"):
            if attempt == "recreate":
                _LOG.warning("the index at %s is unusable and is made anew", self._directory)
                shutil.rmtree(self._directory, ignore_errors=True)
            try:
                shadow = diskcache.Cache(
                    str(self._directory), disk=JsonOnlyDisk, eviction_policy="none", statistics=0, timeout=5
                )
                if shadow.get("schema", SCHEMA) == SCHEMA:
                    shadow.set("schema", SCHEMA)
                    return shadow
                shadow.close()
            except Exception as error:  # sqlite, OS or foreign rows: whatever it is, the index is disposable
                _LOG.warning("cannot open the index: %s", error)
        return None

    def _read_shadow(self) -> dict[str, Row]:
        if self._shadow is None:
            return {}
        try:
            rows = {key: self._shadow[key] for key in self._shadow if key != "schema"}
            if all(isinstance(row, dict) and row.get("key") == key for key, row in rows.items()):
                return rows
            raise ForeignRowError("a row does not describe its key")
        except Exception as error:  # any damage at all
            _LOG.warning("the index is damaged (%s) and is made anew from the artifacts", error)
            with contextlib.suppress(Exception):
                self._shadow.close()
            shutil.rmtree(self._directory, ignore_errors=True)
            self._shadow = self._open()
            return {}

    def _flush(self) -> None:
        self._flushed = self._clock()
        unwritten, self._unwritten = self._unwritten, set()
        for key in unwritten:
            self._write(key, self._rows.get(key))

    def _write(self, key: str, row: Row | None) -> None:
        """To the shadow; its trouble (a full disk, damage) costs a rebuild later, never an answer now."""
        if self._shadow is None:
            return
        try:
            if row is None:
                self._shadow.delete(key)
            else:
                self._shadow.set(key, row)
        except (sqlite3.Error, OSError, diskcache.Timeout) as error:
            _LOG.warning("the index did not take an update: %s", error)


def _listing_position(row: Row) -> tuple[float, str]:
    return -float(row.get("last_used_unix", 0.0)), str(row["key"])


def _parse_token(token: str) -> tuple[float, str] | None:
    if not token:
        return None
    position, separator, key = token.partition("/")
    try:
        if separator:
            return float(position), key
    except ValueError:
        pass
    raise InvalidRequest(
        "the page token is not one of ours", field="page_token", legal="a token from a list reply"
    )


def _matches(row: Row, filters: Mapping[str, str]) -> bool:
    for name, wanted in filters.items():
        folded = wanted.casefold()
        if name == "text":
            if folded not in row["key"] and folded not in canonical_json(row["spec"]).decode().casefold():
                return False
        elif str(row.get(name, "")).casefold() != folded:
            return False
    return True
