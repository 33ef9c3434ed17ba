"""The environment file: what the daemon tells clients so that they compute keys without asking."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import msgspec

from kaas.cache.held_file import with_room
from kaas.cache.layout import StoreLayout
from kaas.proto.canonical import canonical_json
from kaas.proto.environment import Environment

MAX_BYTES = 1 << 20


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file: the environment and the SHA-256 of exactly those bytes."""

    environment: msgspec.Raw
    sha256: str


_ENVELOPE_DECODER = msgspec.json.Decoder(_Envelope)
_ENVIRONMENT_DECODER = msgspec.json.Decoder(Environment)

_Stamp = tuple[int, int, int, int]
_cached: dict[str, tuple[_Stamp, Environment | None]] = {}


def publish_environment(root: str | Path, environment: Environment) -> Path:
    """Replace the store's environment file atomically (mode 0644); the daemon alone does this.

    Raises :class:`StoreFull` or :class:`StoreUnavailable`; the old file then stays as it was.
    """
    from kaas.cache.atomic import replace_file, store_error

    layout = StoreLayout(root)
    content = canonical_json(environment)
    envelope = _Envelope(environment=msgspec.Raw(content), sha256=hashlib.sha256(content).hexdigest())
    try:
        layout.staging.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise store_error(error, "creating", layout.staging) from error
    replace_file(layout.environment_file, msgspec.json.encode(envelope) + b"\n", layout.staging)
    return layout.environment_file


def read_environment(root: str | Path) -> Environment | None:
    """What the daemon last published; ``None`` when there is nothing that can be read and verified.

    An unchanged file costs one ``stat``.
    """
    path = os.path.join(root, "environment.json")  # noqa: PTH118 (on the hot path; pathlib costs more)
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
    known = _cached.get(path)
    if known is not None and known[0] == stamp:
        return known[1]
    read = _read(path)
    if read is None:
        return None
    _cached[path] = read
    return read[1]


def _read(path: str) -> tuple[_Stamp, Environment | None] | None:
    try:
        descriptor = with_room(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size), decode_environment(
        content
    )


def decode_environment(content: bytes) -> Environment | None:
    """The environment in a published file's bytes; ``None`` when they are not what was published."""
    try:
        envelope = _ENVELOPE_DECODER.decode(content)
        if hashlib.sha256(envelope.environment).hexdigest() != envelope.sha256:
            return None
        return _ENVIRONMENT_DECODER.decode(envelope.environment)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
