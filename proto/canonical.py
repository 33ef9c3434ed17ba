"""Canonical JSON and digests: one byte string per value, whoever computes it.

Keys sorted, no white space, UTF-8, shortest round-trip floats; NaN and infinities are refused, since
JSON has no spelling for them and two different values must never share one encoding.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder(order="sorted")


def canonical_json(value: Any) -> bytes:
    """Encode a struct or plain JSON-able value canonically.

    Raises ``ValueError`` for NaN or infinite floats and ``TypeError`` for what JSON cannot hold.
    """
    encoded: bytes = _ENCODER.encode(value)
    if b"null" in encoded:  # how msgspec spells them, and None: only then is a look at every number needed
        _refuse_non_finite(msgspec.to_builtins(value))
    return encoded


def canonical_digest(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _refuse_non_finite(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("NaN and infinite numbers have no canonical JSON")
    elif isinstance(value, dict):
        for item in value.values():
            _refuse_non_finite(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_non_finite(item)
