"""Layout: where things lie in a store's directory."""

from __future__ import annotations

import stat
from pathlib import Path

from kaas.proto.errors import InvalidRequest

ARTIFACT_SUFFIX = ".kernel"


def is_key(text: str) -> bool:
    """Whether ``text`` is a whole kernel key: 64 lower-case hex digits."""
    return len(text) == 64 and not text.strip("0123456789abcdef")


def require_key(text: str) -> str:
    """``text`` if it is a kernel key; raises :class:`InvalidRequest` otherwise."""
    if not isinstance(text, str) or not is_key(text):
        raise InvalidRequest(
            f"{str(text)[:80]!r} is not a kernel key", field="key", legal="64 lower-case hexadecimal digits"
        )
    return text


def key_of_file(shard: str, name: str) -> str | None:
    """The key of the artifact ``name`` in the directory ``shard``; ``None`` when no artifact is called so."""
    key = name.removesuffix(ARTIFACT_SUFFIX)
    return key if key != name and len(shard) == 2 and key.startswith(shard) and is_key(key) else None


def is_foreign_shard(directory: Path) -> bool:
    """Whether something that is no directory itself, a link to one say, has the name of a store's directory.

    Nothing behind it is part of the store. What cannot be looked at is left to whoever opens it.
    """
    try:
        return not stat.S_ISDIR(directory.lstat().st_mode)
    except OSError:
        return False


class StoreLayout:
    """Names inside a store. Clients need ``artifact_path`` and ``environment_file``; the daemon all."""

    __slots__ = (
        "artifacts",
        "audit_file",
        "environment_file",
        "holder_file",
        "index",
        "older_audit_file",
        "pins_file",
        "quarantine",
        "root",
        "staging",
    )

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.environment_file = self.root / "environment.json"
        self.holder_file = self.root / "daemon.json"
        self.artifacts = self.root / "artifacts"
        self.staging = self.root / "staging"
        self.quarantine = self.root / "quarantine"
        self.index = self.root / "index"
        self.pins_file = self.root / "pins.json"
        self.audit_file = self.root / "audit" / "audit.jsonl"
        self.older_audit_file = self.root / "audit" / "audit.1.jsonl"

    def artifact_path(self, key: str) -> Path:
        """The file of a kernel, there or not. Raises :class:`InvalidRequest` for what is no key."""
        require_key(key)
        return self.artifacts / key[:2] / f"{key}{ARTIFACT_SUFFIX}"
