"""Negative results: compiles that failed, remembered by key, so that a bad spec costs one compile.

The key is the passport's, so another toolchain, generator or target asks again by itself. Deterministic
failures are remembered for long, transient ones for moments after their tries are used up. The memory is
bounded, kept over restarts in one file of the store, and may be lost or cleared at any time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kaas.cache.layout import is_key
from kaas.proto.errors import InvalidRequest, KaasError, KernelNotFound, error_from_record
from kaas.proto.passport import Passport
from kaas.server.failure_kind import FailureKind, failure_kind
from kaas.server.family_filter import require_family
from kaas.server.state_file import StateFile
from kaas.server.status import bounded_record_json

FILE_NAME = "failures.json"
MAX_FAILURES = 1000
RECORD_BYTES = 8000
"""Of one error's record: a log's end is what matters."""

CLOCK_SLACK_S = 5.0
"""A failure from the future is one from before a clock was set back: it is forgotten."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One remembered failure. ``passport`` is what its key was made of; times are Unix seconds."""

    key: str
    passport: Passport
    kind: FailureKind
    attempts: int
    failed_unix: float
    expires_unix: float
    error: dict[str, Any]

    @property
    def family(self) -> str:
        """The kernel family."""
        return str(self.passport.spec.get("family"))

    @property
    def message(self) -> str:
        """The error in a line."""
        return str(self.error.get("message", ""))

    def as_error(self) -> KaasError:
        """The error as it was raised, plus when that was, until when it is remembered and how to clear it."""
        error = error_from_record(self.error)
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.failed_unix))
        advice = f"failed at {when} and remembered; kaas failures --clear {self.key[:12]} has it tried again"
        error.hint = f"{error.hint}; {advice}" if error.hint else advice
        error.details |= {
            "remembered": self.kind,
            "key": self.key,
            "attempts": self.attempts,
            "failed_unix": self.failed_unix,
            "expires_unix": self.expires_unix,
        }
        return error


class NegativeResults:
    """Remembered failures by key. Belongs to one event loop."""

    def __init__(
        self,
        file: StateFile[list[Failure]] | None = None,
        *,
        lifetime_s: float,
        transient_lifetime_s: float,
        limit: int = MAX_FAILURES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Lifetimes in seconds, 0 for none; beyond ``limit`` the oldest failure is forgotten."""
        self._file = file
        self._lifetimes: dict[FailureKind, float] = {
            "deterministic": lifetime_s,
            "transient": transient_lifetime_s,
        }
        self._limit = limit
        self._clock = clock
        self._failures: dict[str, Failure] = {}
        self._answered: dict[str, int] = {}
        stored = (file.read() if file else None) or []
        for failure in sorted(stored, key=lambda failure: failure.failed_unix):
            # A file that somebody edited must not answer for a key that its passport does not have.
            if is_key(failure.key) and failure.passport.key() == failure.key:
                self._failures[failure.key] = failure
        self._drop_excess()

    @classmethod
    def in_store(
        cls, root: Path, staging: Path, *, lifetime_s: float, transient_lifetime_s: float
    ) -> NegativeResults:
        """What the daemons that served this store before remembered."""
        file = StateFile(root / FILE_NAME, staging, list[Failure])
        return cls(file, lifetime_s=lifetime_s, transient_lifetime_s=transient_lifetime_s)

    def remember(self, passport: Passport, error: KaasError, attempts: int) -> Failure | None:
        """Keep a compile's last failure; ``None`` when it says nothing of the kernel or has no lifetime."""
        kind = failure_kind(error)
        lifetime_s = self._lifetimes[kind] if kind else 0.0
        if kind is None or lifetime_s <= 0:
            return None
        now = self._clock()
        failure = Failure(
            key=passport.key(),
            passport=passport,
            kind=kind,
            attempts=attempts,
            failed_unix=now,
            expires_unix=now + lifetime_s,
            error=msgspec.json.decode(bounded_record_json(error, RECORD_BYTES)),
        )
        self._failures.pop(failure.key, None)
        self._failures[failure.key] = failure
        self._answered.pop(failure.key, None)
        self._drop_excess()
        self._save()
        return failure

    def recall(self, key: str) -> Failure | None:
        """The failure that a request for ``key`` is answered with, if it is still remembered."""
        failure = self._failures.get(key)
        if failure is not None and not self._is_alive(failure):
            self._forget([key])
            return None
        return failure

    def answer(self, key: str) -> None:
        """Raises what is remembered of ``key``, if anything, and counts the answer."""
        failure = self.recall(key)
        if failure is not None:
            self._answered[key] = self.answered(key) + 1
            raise failure.as_error()

    def answered(self, key: str) -> int:
        """How many requests this daemon has answered with the failure of ``key``."""
        return self._answered.get(key, 0)

    def forget(self, key: str) -> None:
        """The kernel was made after all."""
        if key in self._failures:
            self._forget([key])

    def all(self) -> list[Failure]:
        """What is remembered, newest first."""
        dead = [failure.key for failure in self._failures.values() if not self._is_alive(failure)]
        if dead:
            self._forget(dead)
        return list(reversed(self._failures.values()))

    def of_family(self, name: str) -> list[Failure]:
        """Those of a family, or all for an empty name. Raises :class:`InvalidRequest` if there is none."""
        found = self.all()
        require_family(name, (failure.family for failure in found))
        return [failure for failure in found if name.casefold() in ("", failure.family.casefold())]

    def find(self, key: str) -> Failure:
        """One failure by key or unambiguous prefix. Raises :class:`InvalidRequest` or KernelNotFound."""
        if not re.fullmatch(r"[0-9a-f]{6,64}", key):
            raise InvalidRequest(
                f"{key[:80]!r} is no kernel key", field="key", legal="6 to 64 digits 0-9 a-f, or all"
            )
        found = [failure for failure in self.all() if failure.key.startswith(key)]
        if not found:
            raise KernelNotFound(f"no failure is remembered for {key}", hint="see: kaas failures", key=key)
        if len(found) > 1:
            raise InvalidRequest(
                f"more than one remembered failure's key begins with {key}",
                field="key",
                legal="more digits",
                near=[failure.key for failure in found[:5]],
            )
        return found[0]

    def clear(self, key: str) -> list[str]:
        """Forget one failure by key or unambiguous prefix; returns its key. Raises like :meth:`find`."""
        failure = self.find(key)
        self._forget([failure.key])
        return [failure.key]

    def clear_all(self) -> list[str]:
        """Forget every failure; returns their keys."""
        keys = [failure.key for failure in self.all()]
        self._forget(keys)
        return keys

    def close(self) -> None:
        """Finish the last write."""
        if self._file is not None:
            self._file.close()

    def _is_alive(self, failure: Failure) -> bool:
        # By today's lifetimes: a shorter one in the configuration holds for what is already remembered.
        lifetime_s = min(self._lifetimes[failure.kind], failure.expires_unix - failure.failed_unix)
        return -CLOCK_SLACK_S <= self._clock() - failure.failed_unix < lifetime_s

    def _forget(self, keys: list[str]) -> None:
        for key in keys:
            self._failures.pop(key, None)
            self._answered.pop(key, None)
        self._save()

    def _drop_excess(self) -> None:
        while len(self._failures) > self._limit:
            oldest = next(iter(self._failures))
            del self._failures[oldest]
            self._answered.pop(oldest, None)

    def _save(self) -> None:
        if self._file is not None:
            snapshot = list(self._failures.values())
            self._file.save(lambda: snapshot)
