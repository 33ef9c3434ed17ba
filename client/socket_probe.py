"""Whether somebody listens at the daemon's socket: one connect, before anything heavy is imported."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from kaas.cache.held_file import with_room
from kaas.proto.errors import DaemonUnavailable, KaasError, PermissionDenied

if TYPE_CHECKING:
    from pathlib import Path

UNIX_PATH_LIMIT = 107
"""Bytes of a Unix socket's path on Linux."""

PATIENCE_S = 0.8
"""How long a first connect is tried: enough for a daemon that is being restarted, short for a person."""

_INTERVAL_S = 0.05


def require_daemon(path: Path, patience_s: float = PATIENCE_S) -> None:
    """Return when the daemon's socket accepts a connection.

    Raises :class:`DaemonUnavailable` with the command that starts one, or :class:`PermissionDenied`.
    """
    give_up = time.monotonic() + patience_s
    while True:
        problem = probe(path)
        if problem is None:
            return
        if isinstance(problem, PermissionDenied) or time.monotonic() >= give_up:
            raise problem
        time.sleep(_INTERVAL_S)


def probe(path: Path) -> KaasError | None:
    """What keeps this process from connecting, or ``None``."""
    import socket

    if len(os.fsencode(path)) > UNIX_PATH_LIMIT:
        return _unavailable(path, f"the path is longer than {UNIX_PATH_LIMIT} bytes")
    with with_room(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
        except PermissionError:
            return PermissionDenied(
                f"this user (uid {os.getuid()}) may not use the daemon's socket {path}",
                hint=f"join the group that owns it: {_group_of(path)}",
                socket=str(path),
            )
        except FileNotFoundError:
            return _unavailable(path, "there is no socket")
        except (ConnectionRefusedError, TimeoutError, BlockingIOError) as error:
            return _unavailable(path, f"nobody accepts connections there: {error.strerror or error}")
        except OSError as error:
            return _unavailable(path, str(error.strerror or error))
    return None


def _unavailable(path: Path, reason: str) -> DaemonUnavailable:
    return DaemonUnavailable(
        f"no kaas daemon answers at {path}: {reason}", hint=start_command(path), socket=str(path)
    )


def start_command(path: Path) -> str:
    """The hint that starts a daemon at this socket."""
    from kaas.proto.locations import default_socket

    option = "" if path == default_socket() and "KAAS_SOCKET" not in os.environ else f" --socket {path}"
    return f"start one with: kaas serve{option}"


def _group_of(path: Path) -> str:
    import grp

    try:
        return grp.getgrgid(path.stat().st_gid).gr_name
    except (OSError, KeyError):
        return "see the daemon's socket_group setting"
