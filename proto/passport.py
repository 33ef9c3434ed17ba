"""Passport and key: everything that reaches a binary's bytes, and its SHA-256.

The passport is stored beside the binary, so that a miss or a refusal can be explained field by field.
It never holds an absolute path, a time, or anything that depends on the process that computed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NewType

import msgspec

from kaas.proto.canonical import canonical_digest, canonical_json
from kaas.proto.target import Target
from kaas.proto.toolchain import Toolchain

KernelKey = NewType("KernelKey", str)
"""SHA-256 (64 lower-case hex digits) of a passport's canonical JSON."""

SCHEMA_VERSION = 1
"""Raised whenever the meaning of a passport field or the artifact's contents changes."""


class Generator(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What turns a spec into Ascend C: TileLang, its native libraries and templates, and our own sources."""

    tilelang_version: str
    tilelang_native_digest: str
    templates_digest: str
    lowering_digest: str
    family_digest: str


class Passport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The structured key of one kernel. ``options`` are the effective device compile options."""

    schema_version: int
    spec: dict[str, Any]
    target: Target
    toolchain: Toolchain
    generator: Generator
    options: tuple[str, ...]

    def key(self) -> KernelKey:
        """SHA-256 of the canonical JSON."""
        return KernelKey(canonical_digest(self))


class FieldDifference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One field in which two passports differ; ``path`` is dotted.

    An absent value shows as ``None``; a field absent on one side and null on the other shows ``None`` twice.
    """

    path: str
    ours: Any
    theirs: Any


def differences(ours: Passport, theirs: Passport) -> list[FieldDifference]:
    """Every field in which two passports differ, sorted by path; empty exactly when their keys are equal."""
    return list(_differing(msgspec.to_builtins(ours), msgspec.to_builtins(theirs), ""))


_ABSENT: Any = object()


def _differing(ours: Any, theirs: Any, path: str) -> Iterator[FieldDifference]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in sorted(ours.keys() | theirs.keys()):
            inner = f"{path}.{name}" if path else str(name)
            yield from _differing(ours.get(name, _ABSENT), theirs.get(name, _ABSENT), inner)
    elif _ABSENT in (ours, theirs) or canonical_json(ours) != canonical_json(theirs):
        yield FieldDifference(
            path=path,
            ours=None if ours is _ABSENT else ours,
            theirs=None if theirs is _ABSENT else theirs,
        )
