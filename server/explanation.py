"""Explanation: one plain sentence that says why a kernel is not there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from kaas.proto.passport import FieldDifference
from kaas.server.negative_results import Failure
from kaas.server.scheduler import Forecast

NAMED_FIELDS = 4
"""How many differing fields the sentence spells out."""

_KINDS = (
    ("spec", "another spec"),
    ("target", "another target"),
    ("toolchain", "another toolchain"),
    ("generator.family_digest", "another version of the kernel family's source"),
    ("generator", "another code generator"),
    ("options", "other compile options"),
    ("schema_version", "another schema version"),
)
_TELLING = ("soc_name", "cann_version", "kind", "tilelang_version")
"""Fields that people know by name: told before digests and sizes that change along with them."""


def reason_for_miss(differences: Sequence[FieldDifference]) -> str:
    """The sentence, naming the differing fields, their wanted and their cached values."""
    kinds = dict.fromkeys(kind_of(difference.path) for difference in differences)
    ordered = sorted(differences, key=lambda difference: (_rank(difference.path), difference.path))
    named = "; ".join(_clause(difference) for difference in ordered[:NAMED_FIELDS])
    more = len(ordered) - NAMED_FIELDS
    return (
        f"Not cached: the nearest kernel was built for {' and '.join(kinds)}: {named}"
        + (f"; and {more} more" if more > 0 else "")
        + "."
    )


def reason_of_failure(failure: Failure) -> str:
    """Why a kernel is not there although it was asked for, until when that answer holds, how to end it."""
    outlook = {
        "deterministic": "The same compile would fail again",
        "transient": "It may succeed later",
    }[failure.kind]
    tries = f"{failure.attempts} tries" if failure.attempts > 1 else "one try"
    message = failure.message.rstrip(".")
    return (
        f"Not cached: its compile failed at {_utc(failure.failed_unix)} after {tries}: {message}. "
        f"{outlook}, so this is the answer until {_utc(failure.expires_unix)}; "
        f"kaas failures --clear {failure.key[:12]} has it tried again."
    )


def progress_text(forecast: Forecast) -> str:
    """How far a compile is."""
    if forecast.state == "compiling":
        return f"it is compiling, about {forecast.estimate_s:.0f} s more"
    return f"it is queued as number {forecast.place}, about {forecast.estimate_s:.0f} s away"


def _utc(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix))


def kind_of(path: str) -> str:
    """What a passport field is about, in words."""
    for prefix, words in _KINDS:
        if path == prefix or path.startswith(prefix + "."):
            return words
    return path


def _rank(path: str) -> int:
    return 0 if path.rpartition(".")[2] in _TELLING else 1


def _clause(difference: FieldDifference) -> str:
    ours, theirs = difference.ours, difference.theirs
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        ours, theirs = (
            [x for x in ours if x not in theirs] or ours,
            [x for x in theirs if x not in ours] or theirs,
        )
    return f"{difference.path} is {_shown(theirs)} there and {_shown(ours)} here"


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    is_digest = len(text) == 64 and all(char in "0123456789abcdef" for char in text)
    return text[:12] if is_digest else text if len(text) <= 80 else text[:77] + "..."
