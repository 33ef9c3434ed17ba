"""A file system of a few megabytes of its own, to be filled to the last byte; needs root and mount."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_MNT_DETACH = 2


@contextlib.contextmanager
def small_disk(path: Path, size_bytes: int, inodes: int = 0) -> Iterator[Path]:
    """A tmpfs mounted at ``path``; skips the test where that is not allowed."""
    path.mkdir(parents=True)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={size_bytes},mode=0755" + (f",nr_inodes={inodes}" if inodes else "")
    if libc.mount(b"kaas-test", os.fsencode(path), b"tmpfs", 0, options.encode()) != 0:
        pytest.skip(f"no file system can be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield path
    finally:
        libc.umount2(os.fsencode(path), _MNT_DETACH)


def fill(directory: Path, name: str = "filler") -> Path:
    """Write until not one more byte fits."""
    path = directory / name
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                if file.write(bytes(size)) < size:
                    continue
            except OSError:
                size //= 2
    return path
