"""Listeners: take a Unix socket's path over from a dead daemon, never from a live one.

A socket is bound under a staging name and renamed into place once its mode and group are right, so nobody
can connect before the permissions hold.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kaas.proto.errors import InvalidConfig, PermissionDenied

BACKLOG = 512


@dataclass(frozen=True, kw_only=True)
class SocketAccess:
    """Who may connect: permission bits, and the owning group (empty: the process's own)."""

    mode: int
    group: str = ""


@contextlib.contextmanager
def claimed_socket(path: Path, access: SocketAccess, *, field: str) -> Iterator[Path]:
    """Within the context bind to the yielded staging path; on leaving it becomes ``path``.

    Raises :class:`InvalidConfig` when a live process listens at ``path`` or something else lies there, and
    :class:`PermissionDenied` when the directory may not be used. ``field`` is the configuration field that
    the error names.
    """
    directory = _prepare_directory(path.parent, access, field)
    try:
        # Two daemons that start together must not both take a dead socket over.
        fcntl.flock(directory, fcntl.LOCK_EX)
        refuse_live(path, field)
        staging = path.with_name(f".{path.name}.new")
        with contextlib.suppress(FileNotFoundError):
            staging.unlink()
        previous_umask = os.umask(0o177)
        try:
            yield staging
        finally:
            os.umask(previous_umask)
        try:
            if access.group:
                os.chown(staging, -1, grp.getgrnam(access.group).gr_gid)
            staging.chmod(access.mode)
            staging.rename(path)
        except (OSError, KeyError) as error:
            with contextlib.suppress(OSError):
                staging.unlink()
            raise PermissionDenied(
                f"cannot give {path} to group {access.group!r} with mode {access.mode:04o}: {error}",
                hint="the daemon's user must be a member of that group",
                field=field,
            ) from None
    finally:
        os.close(directory)


def bind_unix(path: Path, access: SocketAccess, *, field: str) -> socket.socket:
    """A listening Unix socket at ``path``. Raises like :func:`claimed_socket`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with claimed_socket(path, access, field=field) as staging:
            listener.bind(str(staging))
            listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def bind_tcp(host: str, port: int, *, field: str) -> socket.socket:
    """A listening TCP socket. Raises :class:`InvalidConfig` when the address cannot be bound."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise InvalidConfig(
            f"{field}: cannot listen on {host}:{port}: {error.strerror or error}",
            field=field,
            hint="choose another address or port",
        ) from None
    listener.setblocking(False)
    return listener


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of what lies at ``path``: tells our socket from a successor's."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def remove_own(path: Path, own: tuple[int, int] | None) -> None:
    """Remove the socket at ``path`` if it is still the one that we bound."""
    if own is not None and identity(path) == own:
        with contextlib.suppress(OSError):
            path.unlink()


def _prepare_directory(directory: Path, access: SocketAccess, field: str) -> int:
    """Create the directory if need be, and open it. Others enter it only if a group was named."""
    try:
        if not directory.exists():
            directory.mkdir(parents=True, exist_ok=True, mode=0o755)
            directory.chmod(0o755 if access.group else 0o700)
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise PermissionDenied(
            f"{field}: the directory {directory} cannot be used: {error.strerror}",
            hint=f"create it for this user, or set {field} elsewhere",
            field=field,
        ) from None
    status = os.fstat(opened)
    is_foreign = status.st_uid not in (0, os.geteuid())
    is_open_to_all = bool(status.st_mode & stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
    if is_foreign or is_open_to_all or not os.access(directory, os.W_OK | os.X_OK):
        os.close(opened)
        reason = "belongs to another user" if is_foreign else "may be changed by anybody"
        if not is_foreign and not is_open_to_all:
            reason = "is not writable"
        raise PermissionDenied(
            f"{field}: the directory {directory} {reason}",
            hint=f"set {field} to a path in a directory of the daemon's own",
            field=field,
        )
    return opened


def refuse_live(path: Path, field: str) -> None:
    """Raise :class:`InvalidConfig` when a live process listens at ``path``, or no socket lies there."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise InvalidConfig(
            f"{field}: {path} exists and is not a socket",
            field=field,
            hint="remove it or choose another path",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        outcome = probe.connect_ex(str(path))
    if outcome in (errno.ECONNREFUSED, errno.ENOENT):
        return
    raise InvalidConfig(
        f"another daemon is already listening on {path}",
        field=field,
        hint=f"stop it first, or choose another {field}",
    )
