"""Breaker: leaves a remote tier alone for a while after it failed several times in a row.

What does not answer then costs one deadline now and then, not one for each kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Closed: all may pass. Open: none. After ``open_s`` half-open: one may try, and decides.

    Who was let through says how it went: :meth:`succeeded`, :meth:`failed` or, if it never knew,
    :meth:`withdrew`. One thread or event loop at a time.
    """

    def __init__(
        self, *, open_after: int, open_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open_after = open_after
        self._open_s = open_s
        self._clock = clock
        self._failures = 0
        self._open_until: float | None = None
        self._is_tried = False
        self.times_opened = 0

    @property
    def state(self) -> State:
        """As it is now."""
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half-open"

    @property
    def opens_in_s(self) -> float:
        """Seconds until the next may try; 0 while all may."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def allows(self) -> bool:
        """Whether the caller may try now."""
        if self._open_until is None:
            return True
        if self._is_tried or self._clock() < self._open_until:
            return False
        self._is_tried = True
        return True

    def succeeded(self) -> None:
        """It answered."""
        self._failures, self._open_until, self._is_tried = 0, None, False

    def failed(self) -> None:
        """It failed, or did not answer in time."""
        self._failures += 1
        was_open = self._open_until is not None
        if self._is_tried or (not was_open and self._failures >= self._open_after):
            self._open_until = self._clock() + self._open_s
            self.times_opened += 1
        self._is_tried = False

    def withdrew(self) -> None:
        """The caller gave up for reasons of its own."""
        self._is_tried = False
