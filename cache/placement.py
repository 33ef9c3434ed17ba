"""Placement: whether a directory is a safe place for a store, and creating it when there is none."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from kaas.cache.atomic import store_error
from kaas.cache.layout import StoreLayout
from kaas.cache.mounts import mount_of
from kaas.proto.errors import StoreUnavailable

_LOG = logging.getLogger(__name__)

DIRECTORY_MODE = 0o755
PRIVATE_MODE = 0o700


def directories_of(layout: StoreLayout) -> tuple[tuple[Path, int], ...]:
    """What a store's root holds, with modes: readers need all of it but what is unfinished."""
    return (
        (layout.artifacts, DIRECTORY_MODE),
        (layout.quarantine, DIRECTORY_MODE),
        (layout.staging, PRIVATE_MODE),
    )


def prepare_root(root: str | Path, *, allow_network_fs: bool = False) -> Path:
    """The store's real directory: created if need be, owned by this user, writable by nobody else.

    Raises :class:`StoreUnavailable` naming the directory and the cure, also for a network file system unless
    that is allowed.
    """
    named = Path(os.path.abspath(root))  # noqa: PTH100 (must not follow the link that is judged below)
    try:
        _refuse_foreign_link(named)
        real = named.resolve(strict=False)
        _judge_mount(real, allow_network_fs)
        for ancestor in reversed(real.parents):
            _refuse_open_ancestor(ancestor)
        make_directory(real, DIRECTORY_MODE)
        _refuse_unsafe(real)
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError):
            raise store_error(error, "preparing the store", named) from error
        raise StoreUnavailable(f"{named}: {error}", path=str(named)) from error
    return real


def make_directory(path: Path, mode: int) -> None:
    """Create ``path`` and its missing parents (0755), whatever the umask; an existing one is left alone."""
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent, DIRECTORY_MODE)
    try:
        path.mkdir(mode=PRIVATE_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(mode)


def require_private(path: Path, mode: int) -> None:
    """A directory inside the store: created with ``mode``; refused if a link or writable by others."""
    make_directory(path, mode)
    _refuse_unsafe(path)


def _judge_mount(path: Path, allow_network_fs: bool) -> None:
    mount = mount_of(path)
    if mount is None or not mount.is_network:
        return
    problem = f"{path} lies on {mount.source} ({mount.type}), a network file system"
    if not allow_network_fs:
        raise StoreUnavailable(
            f"{problem}: other nodes can write there, and locks and renames may not hold",
            hint="name a local directory with KAAS_STORE, or set allow_network_fs",
            path=str(path),
            file_system=mount.type,
        )
    _LOG.warning("%s; as allow_network_fs says, it is used all the same", problem)


def _refuse_foreign_link(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
        raise StoreUnavailable(
            f"the store {path} is a symbolic link that belongs to user {status.st_uid}",
            hint="name a directory of your own with KAAS_STORE",
            path=str(path),
        )


def _refuse_open_ancestor(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise StoreUnavailable(
            f"everybody may rename what lies in {path} (mode {stat.S_IMODE(mode):04o}): no store is safe",
            hint=f"chmod o-w {path}, or name another directory with KAAS_STORE",
            path=str(path),
        )


def _refuse_unsafe(path: Path) -> None:
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISDIR(status.st_mode):
        raise StoreUnavailable(f"{path} is not a directory", hint="move it away", path=str(path))
    if status.st_uid != os.geteuid():
        raise StoreUnavailable(
            f"{path} belongs to user {status.st_uid}, not to user {os.geteuid()} who runs the daemon",
            hint="run the daemon as that user, or name a directory of your own with KAAS_STORE",
            path=str(path),
        )
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreUnavailable(
            f"others than its owner may write to {path} (mode {mode:04o})",
            hint=f"chmod go-w {path}",
            path=str(path),
        )
