"""Index: what the store holds, for lists, prefix look-ups and explanations. It never holds a kernel's bytes.

The index is a dict in memory; :mod:`kaas.cache.shadow` keeps its rows on disk. Nothing depends on it: trouble
with the shadow costs a scan of the artifacts at the next start and never an answer. Used from one thread at a
time.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kaas.cache.artifact import Artifact
from kaas.cache.layout import StoreLayout, require_key
from kaas.cache.shadow import IndexShadow, ShadowBusyError, ShadowLostError
from kaas.cache.store import PassedOver, Store
from kaas.proto.canonical import canonical_json
from kaas.proto.errors import InvalidRequest, KaasError

_LOG = logging.getLogger(__name__)

Row = dict[str, Any]
"""The facts of one kernel, by the field names of :class:`_Entry`; ``spec`` is the plain spec."""

Rows = list[Row]

FLUSH_INTERVAL_S = 5.0
"""How long a change may stay unwritten; losing it costs one artifact read, or some hits, at a restart."""


ROWS_PER_FLUSH = 1000
"""Rows written at once at most while serving, so that nobody waits long for the index."""

ROWS_PER_STEP = 1000
STEP_BUDGET_S = 0.005


class _Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A row as it is kept: 100,000 of them must stay small, so the spec stays text and names are interned."""

    key: str
    family: str
    spec_json: str
    soc_name: str
    cann_version: str
    toolchain_kind: str
    dtype: str
    size_bytes: int
    created_unix: float
    compile_seconds: float
    hits: int = 0
    last_used_unix: float = 0.0


_ENTRY_DECODER = msgspec.json.Decoder(_Entry)
_INTERNED = ("family", "soc_name", "cann_version", "toolchain_kind", "dtype")


class KernelIndex:
    """Rows by kernel key; lists are newest first, an order that hits do not change."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._shadow = IndexShadow(StoreLayout(root))
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._order: list[tuple[float, str]] = []
        self._unwritten: set[str] = set()
        self._forgotten: set[str] | None = None  # while rebuilding: kernels that went meanwhile
        self._flushed = clock()
        self.trouble: str | None = None
        """Why the last write to disk failed; ``None`` when it did not."""

    def __len__(self) -> int:
        return len(self._entries)

    def rebuild(self, store: Store, summarize: Callable[[Artifact], Row]) -> None:
        """Bring the index in line with ``store``: rows of absent kernels go, missing rows are read anew.

        A damaged artifact met on the way is quarantined by the store and gets no row. Where the store cannot
        be listed, the rows that are known of it stay.
        """
        for _ in self.rebuilding(store, summarize):
            pass

    def rebuilding(self, store: Store, summarize: Callable[[Artifact], Row]) -> Iterator[None]:
        """:meth:`rebuild` in steps of bounded work; all other calls are welcome between any two.

        Lists are short until the last step; kernels recorded, used or forgotten meanwhile stay so.
        """
        self._forgotten = set()
        try:
            known: dict[str, _Entry] = {}
            for rows in self._read_shadow():
                if rows is None:
                    known.clear()
                else:
                    known |= rows
                yield
            recorded = set(self._entries)
            present: set[str] = set()
            reading = time.monotonic()
            listing = _Listing(store)
            for number, key in enumerate(listing):
                present.add(key)
                if key not in self._entries and key not in self._forgotten:
                    entry = known.get(key)
                    if entry is None:
                        entry = self._read_entry(store, key, summarize)
                    if entry is not None:
                        self._entries[key] = entry
                if number % ROWS_PER_STEP == 0 or time.monotonic() - reading > STEP_BUDGET_S:
                    yield
                    reading = time.monotonic()
            # What was there before and is not any more; what came while we looked may have been overlooked.
            if listing.is_whole:
                for key in recorded - present:
                    self._entries.pop(key, None)
            else:
                unseen = known.keys() - self._entries.keys() - self._forgotten
                self._entries |= {key: known[key] for key in unseen - present}
            self._unwritten |= known.keys() - self._entries.keys()
            self._order = sorted(map(_position, self._entries.values()))
        finally:
            self._forgotten = None
        yield
        while self._unwritten and self.flush(ROWS_PER_FLUSH):
            yield

    def _read_entry(self, store: Store, key: str, summarize: Callable[[Artifact], Row]) -> _Entry | None:
        artifact = store.load(key)
        if artifact is None:
            return None
        with artifact:
            self._unwritten.add(key)
            return _entry(summarize(artifact))

    def record(self, row: Row) -> None:
        """Add or replace the row of a published kernel; a replaced one keeps its count of hits.

        Raises :class:`InvalidRequest` for a row whose key is none, ``ValidationError`` for other than the
        row's fields.
        """
        entry = _entry({"last_used_unix": self._clock(), **row})
        require_key(entry.key)
        if self._forgotten is not None:
            self._forgotten.discard(entry.key)
        before = self._entries.get(entry.key)
        if before is not None:
            entry.hits = max(entry.hits, before.hits)
            self._unlist(before)
        self._entries[entry.key] = entry
        bisect.insort(self._order, _position(entry))
        self._changed(entry.key)

    def touch(self, key: str, *, is_hit: bool = True) -> None:
        """Note a use, in memory; a hit costs no write. One that is no hit is the end of a long use."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.hits += is_hit
            entry.last_used_unix = self._clock()
            self._changed(key)

    def forget(self, key: str) -> None:
        """Drop the row of a kernel that is gone."""
        if self._forgotten is not None:
            self._forgotten.add(key)
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._unlist(entry)
            self._changed(key)

    def get(self, key: str) -> Row | None:
        """One row."""
        entry = self._entries.get(key)
        return _row(entry) if entry is not None else None

    def keys(self) -> list[str]:
        """All keys as they are now."""
        return list(self._entries)

    def families(self) -> set[str]:
        """Families that there are kernels of."""
        return {entry.family for entry in self._entries.values()}

    def value_facts(self, key: str) -> tuple[float, int, float] | None:
        """Compile seconds, size in bytes, and when it was last used (or else made)."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        return entry.compile_seconds, entry.size_bytes, entry.last_used_unix or entry.created_unix

    def keys_with_prefix(self, prefix: str, *, limit: int) -> list[str]:
        """Up to ``limit`` keys that begin with ``prefix``, in order."""
        return sorted(key for key in self._entries if key.startswith(prefix))[:limit]

    def list(self, filters: Mapping[str, str], page_size: int, page_token: str) -> tuple[Rows, str, int]:
        """One page of matching rows, the next page's token (empty on the last), and how many match in all.

        Newest first, ties by key: pages neither repeat nor miss a kernel that stays, whatever is added, used
        or removed meanwhile. ``filters`` compares fields without case; ``text`` is looked for in key and
        canonical spec. Raises :class:`InvalidRequest` for an unknown filter or a foreign token.
        """
        wanted = _wanted(filters)
        matching = self._order
        if wanted:
            matching = [place for place in matching if _matches(self._entries[place[1]], wanted)]
        start = bisect.bisect_right(matching, _parse_token(page_token)) if page_token else 0
        page = matching[start : start + page_size]
        has_more = bool(page) and start + page_size < len(matching)
        token = f"{page[-1][0]!r}/{page[-1][1]}" if has_more else ""
        return [_row(self._entries[key]) for _, key in page], token, len(matching)

    def nearest(self, spec: Mapping[str, Any], limit: int) -> Rows:
        """The ``limit`` kernels likest to ``spec``: the same spec first, then by how many fields differ.

        Among equals the newest come first; another family differs in more than any other difference counts.
        """
        text = canonical_json(spec).decode()
        family = str(spec.get("family"))
        ranked: list[tuple[int, int]] = []
        for number, (_, key) in enumerate(self._order):
            entry = self._entries[key]
            if entry.spec_json == text:
                distance = 0
            elif entry.family == family:
                distance = _distance(msgspec.json.decode(entry.spec_json), spec)
            else:
                continue
            ranked.append((distance, number))
        ranked.sort()
        found = [self._order[number][1] for _, number in ranked[:limit]]
        if len(found) < limit:
            others = (key for _, key in self._order if self._entries[key].family != family)
            found += [key for key, _ in zip(others, range(limit - len(found)), strict=False)]
        return [_row(self._entries[key]) for key in found]

    def flush(self, limit: int | None = None) -> bool:
        """Write what is unwritten (or ``limit`` rows of it), in one transaction; whether that worked.

        Trouble is kept in :attr:`trouble`, never raised.
        """
        self._flushed = self._clock()
        try:
            try:
                self._write_some(limit)
            except ShadowLostError:
                self._unwritten = set(self._entries)
                self._write_some(limit)
        except (ShadowBusyError, ShadowLostError) as error:
            if isinstance(error, ShadowLostError):
                self._unwritten = set(self._entries)
            if self.trouble is None:
                _LOG.warning("the index cannot be written, serving goes on without: %s", error)
            self.trouble = str(error)
            return False
        self.trouble = None
        return True

    def close(self) -> None:
        """Write what is unwritten."""
        self.flush()

    def _read_shadow(self) -> Iterator[dict[str, _Entry] | None]:
        """Its rows in parts; ``None`` when those before it are not to be trusted after all."""
        try:
            for rows in self._shadow.parts():
                entries = {key: _interned(_ENTRY_DECODER.decode(row)) for key, row in rows.items()}
                yield {key: entry for key, entry in entries.items() if entry.key == key}
        except ShadowLostError:
            self._unwritten |= self._entries.keys()
            yield None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:  # sealed by us, so by another version
            _LOG.warning("the index has rows of another version: %s", error)
            yield None

    def _write_some(self, limit: int | None) -> None:
        keys = self._unwritten
        if not keys:
            return
        if limit is not None and len(keys) > limit:
            keys = set(itertools.islice(keys, limit))
        entries = self._entries
        self._shadow.write(
            {key: msgspec.json.encode(entries[key]) if key in entries else None for key in keys}
        )
        self._unwritten = self._unwritten - keys

    def _changed(self, key: str) -> None:
        self._unwritten.add(key)
        # A clock that was set back must not put off what is due.
        is_time = not 0 <= self._clock() - self._flushed < FLUSH_INTERVAL_S
        if is_time or (len(self._unwritten) >= ROWS_PER_FLUSH and self.trouble is None):
            self.flush(ROWS_PER_FLUSH)

    def _unlist(self, entry: _Entry) -> None:
        place = _position(entry)
        number = bisect.bisect_left(self._order, place)
        if number < len(self._order) and self._order[number] == place:
            del self._order[number]


class _Listing:
    """A store's keys, as far as its directories can be listed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_whole = True

    def __iter__(self) -> Iterator[str]:
        try:
            yield from self._store.keys(self._pass_over)
        except KaasError as error:
            self.is_whole = False
            _LOG.warning("not every kernel could be looked for: %s", error)

    def _pass_over(self, passed: PassedOver) -> None:
        # What is no part of the store has no rows; what cannot be listed just now keeps them.
        self.is_whole = self.is_whole and passed.is_foreign
        _LOG.warning("not every kernel could be looked for: %s: %s", passed.path, passed.reason)


def _entry(row: Row) -> _Entry:
    facts = {**row, "spec_json": canonical_json(row["spec"]).decode()}
    del facts["spec"]
    return _interned(msgspec.convert(facts, _Entry))


def _interned(entry: _Entry) -> _Entry:
    for name in _INTERNED:
        setattr(entry, name, sys.intern(getattr(entry, name)))
    return entry


def _row(entry: _Entry) -> Row:
    row = msgspec.structs.asdict(entry)
    row["spec"] = msgspec.json.decode(row.pop("spec_json"))
    return row


def _position(entry: _Entry) -> tuple[float, str]:
    return -entry.created_unix, entry.key


def _parse_token(token: str) -> tuple[float, str]:
    position, separator, key = token.partition("/")
    try:
        if separator and math.isfinite(number := float(position)):
            return number, require_key(key)
    except (ValueError, InvalidRequest):
        pass
    raise InvalidRequest(
        "the page token is not one of ours", field="page_token", legal="a token from a list reply"
    )


def _wanted(filters: Mapping[str, str]) -> dict[str, str]:
    legal = (*_INTERNED, "text")
    for name in filters:
        if name not in legal:
            raise InvalidRequest(f"kernels cannot be filtered by {name!r}", field=name, legal=legal)
    return {name: value.casefold() for name, value in filters.items() if value}


def _matches(entry: _Entry, wanted: Mapping[str, str]) -> bool:
    for name, value in wanted.items():
        if name == "text":
            if value not in entry.key and value not in entry.spec_json.casefold():
                return False
        elif getattr(entry, name).casefold() != value:
            return False
    return True


def _distance(spec: Mapping[str, Any], wanted: Mapping[str, Any]) -> int:
    return sum(spec.get(name) != wanted.get(name) for name in spec.keys() | wanted.keys())
