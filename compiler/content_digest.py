"""SHA-256 of files and folders, remembered within a process for as long as a file stays the same file.

A digest is recomputed when a file's inode, size, modification or change time differs. Nothing is remembered
across processes: a reinstall may set any time it likes, but not the change time. Every job looks at thousands
of files: paths are text here, since ``pathlib`` costs more than the kernel.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

PathText = str | os.PathLike[str]
FileIdentity = tuple[int, int, int, int, int]
_REMEMBERED: dict[str, tuple[FileIdentity, str]] = {}


def file_digest(path: PathText) -> str:
    """SHA-256 (hex) of a file's bytes. Raises ``OSError``."""
    name = os.fspath(path)
    before = file_identity(path)
    remembered = _REMEMBERED.get(name)
    if remembered is not None and remembered[0] == before:
        return remembered[1]
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if file_identity(path) == before:
        _REMEMBERED[name] = (before, digest)
    return digest


def files_digest(named: Iterable[tuple[str, PathText]]) -> str:
    """SHA-256 (hex) over names and contents, in order of names; independent of where the files lie."""
    total = hashlib.sha256()
    for name, path in sorted(named):
        total.update(f"{len(name.encode())}:{name}:{file_digest(path)}\n".encode())
    return total.hexdigest()


def tree_files(root: PathText, name: str) -> Iterator[tuple[str, str]]:
    """(name/relative path, path) of every regular file below ``root``; linked folders are followed once."""
    seen: set[tuple[int, int]] = set()
    top = os.fspath(root)
    for folder, folders, files in os.walk(top, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        for file in files:
            path = f"{folder}/{file}"
            if os.path.isfile(path):
                yield f"{name}{folder[len(top) :]}/{file}", path


def file_identity(path: PathText) -> FileIdentity:
    """What tells whether a file is still the same file with the same content. Raises ``OSError``."""
    status = os.stat(path)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
