"""SHA-256 of files and folders, remembered within a process for as long as a file stays the same file.

A digest is recomputed when a file's inode, size, modification or change time differs. Nothing is remembered
across processes: a reinstall may set any time it likes, but not the change time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

FileIdentity = tuple[int, int, int, int, int]
_REMEMBERED: dict[str, tuple[FileIdentity, str]] = {}


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes. Raises ``OSError``."""
    name = str(path)
    before = file_identity(path)
    remembered = _REMEMBERED.get(name)
    if remembered is not None and remembered[0] == before:
        return remembered[1]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if file_identity(path) == before:
        _REMEMBERED[name] = (before, digest)
    return digest


def files_digest(named: Iterable[tuple[str, Path]]) -> str:
    """SHA-256 (hex) over names and contents, in order of names; independent of where the files lie."""
    total = hashlib.sha256()
    for name, path in sorted(named):
        total.update(f"{len(name.encode())}:{name}:{file_digest(path)}\n".encode())
    return total.hexdigest()


def tree_files(root: Path, name: str) -> Iterator[tuple[str, Path]]:
    """(name/relative path, path) of every regular file below ``root``; linked folders are followed once."""
    seen: set[str] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for file in files:
            path = Path(folder, file)
            if path.is_file():
                yield f"{name}/{path.relative_to(root).as_posix()}", path


def file_identity(path: Path) -> FileIdentity:
    """What tells whether a file is still the same file with the same content. Raises ``OSError``."""
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
