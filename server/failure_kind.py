"""Failure kinds: what another try of the same compile would come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kaas.proto.errors import (
    CompileFailed,
    CompileOutOfMemory,
    CompileTimeout,
    InvalidSpec,
    KaasError,
    StoreFull,
    StoreUnavailable,
    UnsupportedTarget,
    WorkerCrashed,
)

FailureKind = Literal["deterministic", "transient"]
FAILURE_KINDS: tuple[FailureKind, ...] = ("deterministic", "transient")

LONGEST_DELAY_S = 30.0

_DETERMINISTIC = (InvalidSpec, UnsupportedTarget)
_TRANSIENT = (CompileTimeout, CompileOutOfMemory, WorkerCrashed, StoreFull, StoreUnavailable)
_STALE_STAGES = ("toolkit", "generator")
"""The toolkit or TileLang is no longer what the daemon's keys name: news about the node, not the kernel."""


def failure_kind(error: KaasError) -> FailureKind | None:
    """As what a failed compile is remembered; ``None``: not at all, since it says nothing about the kernel.

    Deterministic: an illegal spec, one that does not fit, source that the compiler refuses, a compiler that
    reports success and leaves nothing. Transient: timeout, out of memory, a killed worker or compiler, disk.
    """
    if isinstance(error, CompileFailed):
        if error.details.get("stage") in _STALE_STAGES:
            return None
        return "transient" if error.details.get("deterministic") is False else "deterministic"
    if isinstance(error, _DETERMINISTIC):
        return "deterministic"
    return "transient" if isinstance(error, _TRANSIENT) else None


def is_shortage(error: KaasError) -> bool:
    """Whether it ran out of memory, or was killed as the kernel's out-of-memory killer does it."""
    return isinstance(error, CompileOutOfMemory) or error.details.get("signal") == "SIGKILL"


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often a compile is tried in all, and the pause before the second try; each later one is twice as
    long, 30 s at most."""

    attempts: int = 1
    first_delay_s: float = 0.5

    def delay_s(self, error: KaasError, attempts: int) -> float | None:
        """Seconds until the next try after ``attempts`` of them; ``None``: that was the last."""
        if attempts >= self.attempts or not _is_worth_repeating(error):
            return None
        return float(min(self.first_delay_s * 2 ** (attempts - 1), LONGEST_DELAY_S))


def _is_worth_repeating(error: KaasError) -> bool:
    # A compiler that leaves nothing gets a second chance, since a disk may have been full; then it is
    # believed.
    return failure_kind(error) == "transient" or error.details.get("no_output") is True
