"""Limits: how much a store may hold, and what one of its kernels is worth keeping."""

from __future__ import annotations

import math

import msgspec

MIB = 1 << 20
DAY_S = 86_400.0

LOW_WATER = 0.95
"""Eviction goes on down to this share of a limit, so that not every later publication starts it again."""


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator allows; 0 means no such limit.

    Above ``soft_bytes`` or ``soft_files`` the least valuable kernels go, and whatever nobody used for
    ``max_idle_s``. Publishing is refused when it would take the store above ``hard_bytes`` or leave less than
    ``min_free_bytes`` on its file system. A kernel's worth halves with every ``half_life_s`` without use.
    """

    soft_bytes: int = 0
    soft_files: int = 0
    max_idle_s: float = 0.0
    hard_bytes: int = 0
    min_free_bytes: int = 0
    half_life_s: float = 7 * DAY_S


class StoreUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a store's artifacts take. ``is_measured``: every directory has been looked at since the start."""

    bytes: int = 0
    files: int = 0
    is_measured: bool = False


def exceeds(usage: StoreUsage, limits: StoreLimits, share: float = 1.0) -> bool:
    """Whether ``usage`` is above ``share`` of one of the soft limits."""
    return bool(
        (limits.soft_bytes and usage.bytes > share * limits.soft_bytes)
        or (limits.soft_files and usage.files > math.ceil(share * limits.soft_files))
    )


def worth(compile_seconds: float, size_bytes: int, last_used_unix: float, half_life_s: float) -> float:
    """Log2 of the compile seconds that a byte saves, halved for every half-life since the last use.

    The age itself drops out: as all kernels decay alike, their order depends on when each was last used and
    never on when it is looked at. Hence an order once made stays right until a kernel is used.
    """
    seconds_per_byte = max(compile_seconds, 1e-3) / max(size_bytes, 1)
    return math.log2(seconds_per_byte) + last_used_unix / half_life_s
