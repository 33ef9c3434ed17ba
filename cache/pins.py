"""Pins: kernels that an operator wants kept, each with a reason and perhaps an end; one small file."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from kaas.cache.atomic import replace_file
from kaas.cache.layout import StoreLayout, is_key, require_key
from kaas.proto.errors import InvalidRequest

_LOG = logging.getLogger(__name__)

MAX_PINS = 100_000
MAX_REASON = 500
MAX_FILE_BYTES = 128 << 20


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why a kernel stays, since when and until when (0: until it is unpinned)."""

    key: str
    reason: str
    since_unix: float
    expires_unix: float = 0.0


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int
    pins: list[Pin]


class Pins:
    """The pins of one store; a kernel may be pinned before it exists. Callable from any thread."""

    def __init__(self, layout: StoreLayout, clock: Callable[[], float] = time.time) -> None:
        self._layout = layout
        self._clock = clock
        self._lock = threading.Lock()
        self._pins = _read(layout)

    def is_pinned(self, key: str) -> bool:
        """Whether a pin holds just now."""
        pin = self._pins.get(key)
        return pin is not None and self._holds(pin)

    def get(self, key: str) -> Pin | None:
        """The pin of a kernel, if one holds."""
        pin = self._pins.get(key)
        return pin if pin is not None and self._holds(pin) else None

    def all(self) -> list[Pin]:
        """Every pin that holds, newest first."""
        pins = [pin for pin in self._pins.values() if self._holds(pin)]
        return sorted(pins, key=lambda pin: (-pin.since_unix, pin.key))

    def pin(self, keys: Iterable[str], reason: str, expires_unix: float = 0.0) -> list[Pin]:
        """Pin kernels, in place of pins that they have; all or, when an error is raised, none.

        Raises :class:`InvalidRequest`, and :class:`StoreFull` or :class:`StoreUnavailable` when the file
        cannot be written.
        """
        now = self._clock()
        reason = reason.strip()
        if not 1 <= len(reason) <= MAX_REASON:
            raise InvalidRequest(
                f"a pin's reason has {len(reason)} characters",
                field="reason",
                legal=f"1 to {MAX_REASON} characters",
            )
        if expires_unix and expires_unix <= now:
            raise InvalidRequest("the pin would have ended already", field="expires", legal="a time to come")
        new = [
            Pin(key=require_key(key), reason=reason, since_unix=now, expires_unix=expires_unix)
            for key in dict.fromkeys(keys)
        ]
        with self._lock:
            pins = {key: pin for key, pin in self._pins.items() if self._holds(pin)}
            pins |= {pin.key: pin for pin in new}
            if len(pins) > MAX_PINS:
                raise InvalidRequest(
                    f"there would be {len(pins)} pins", field="keys", legal=f"at most {MAX_PINS} pins in all"
                )
            self._write(pins)
        return new

    def unpin(self, keys: Iterable[str]) -> list[str]:
        """Remove pins; the keys that had one. Raises like :meth:`pin`."""
        with self._lock:
            gone = [key for key in dict.fromkeys(keys) if self.is_pinned(key)]
            if gone:
                doomed = set(gone)
                self._write(
                    {key: pin for key, pin in self._pins.items() if key not in doomed and self._holds(pin)}
                )
        return gone

    def _holds(self, pin: Pin) -> bool:
        return not pin.expires_unix or pin.expires_unix > self._clock()

    def _write(self, pins: dict[str, Pin]) -> None:
        content = msgspec.json.encode(_File(version=1, pins=list(pins.values())))
        replace_file(self._layout.pins_file, content + b"\n", self._layout.staging)
        self._pins = pins


def _read(layout: StoreLayout) -> dict[str, Pin]:
    path = layout.pins_file
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError("it is too large")
        read = msgspec.json.decode(path.read_bytes(), type=_File)
        return {pin.key: pin for pin in read.pins if is_key(pin.key)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        _LOG.error("the pins in %s cannot be read, so nothing is pinned: %s", path, error)
        return {}
