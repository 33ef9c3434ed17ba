"""Passport and key: everything that reaches a binary's bytes, and its SHA-256.

The passport is stored beside the binary, so that a miss or a refusal can be explained field by field.
It never holds an absolute path, a time, or anything that depends on the process that computed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NewType

import msgspec

from kaas.proto.canonical import canonical_digest
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
    """One field in which two passports differ; ``path`` is dotted, an absent value is ``None``."""

    path: str
    ours: Any
    theirs: Any


def _flatten(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name in value:
            yield from _flatten(value[name], f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def differences(ours: Passport, theirs: Passport) -> list[FieldDifference]:
    """Every leaf field in which two passports differ, sorted by path."""
    left = dict(_flatten(msgspec.to_builtins(ours), ""))
    right = dict(_flatten(msgspec.to_builtins(theirs), ""))
    return [
        FieldDifference(path=path, ours=left.get(path), theirs=right.get(path))
        for path in sorted(left.keys() | right.keys())
        if left.get(path) != right.get(path)
    ]
