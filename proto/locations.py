"""Where a node keeps its socket and its store, alike for daemon and client.

``KAAS_SOCKET`` and ``KAAS_STORE`` override. A system-wide daemon (``/run/kaas/kaas.sock``) is preferred by
clients when its socket exists; otherwise each user has one under ``XDG_RUNTIME_DIR``.
"""

from __future__ import annotations

import os
from pathlib import Path

SYSTEM_SOCKET = Path("/run/kaas/kaas.sock")
SYSTEM_STORE = Path("/var/cache/kaas")
LEASE_SUFFIX = ".lease"


def user_runtime_directory() -> Path:
    """``$XDG_RUNTIME_DIR/kaas``, or a directory of the user's own under /tmp where that is not set."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "kaas" if runtime else Path(f"/tmp/kaas-{os.getuid()}")


def default_socket() -> Path:
    """The daemon's socket: ``KAAS_SOCKET``, the system socket if it exists, else the user's."""
    configured = os.environ.get("KAAS_SOCKET")
    if configured:
        return Path(configured)
    return SYSTEM_SOCKET if SYSTEM_SOCKET.exists() else user_runtime_directory() / "kaas.sock"


def lease_socket(socket: Path) -> Path:
    """Where client processes say what kernels they hold, beside the daemon's socket."""
    return socket.with_name(socket.name + LEASE_SUFFIX)


def default_store() -> Path:
    """The store's root: ``KAAS_STORE``, the system store beside a system daemon, else the user's cache."""
    configured = os.environ.get("KAAS_STORE")
    if configured:
        return Path(configured)
    if SYSTEM_SOCKET.exists():
        return SYSTEM_STORE
    cache = os.environ.get("XDG_CACHE_HOME")
    if cache:
        return Path(cache) / "kaas" / "store"
    home = os.environ.get("HOME", "")
    base = Path(home) / ".cache" if home not in ("", "/") else user_runtime_directory()
    return base / "kaas" / "store"
