"""doctor: what on this node keeps kaas from working, and what to do about it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from kaas.client.socket_probe import probe
from kaas.proto.environment import Environment
from kaas.proto.errors import KaasError

if TYPE_CHECKING:
    from kaas.cache.layout import StoreLayout

Status = Literal["ok", "warn", "fail"]

CLIENT_PACKAGES = ("msgspec", "grpc", "grpc_health", "google.protobuf", "yaml", "typer", "rich")
DAEMON_PACKAGES = ("fastapi", "uvicorn", "diskcache", "tilelang", "torch")
LOW_SPACE_BYTES = 1 << 30
CATCH_UP_S = 2.0
"""How long lists may be behind the store without getting nearer."""


class Finding(NamedTuple):
    """One check: ``ok``, ``warn`` (works, but look at it) or ``fail``; ``advice`` is what to do."""

    status: Status
    subject: str
    message: str
    advice: str = ""


def examine(store: Path, socket: Path) -> list[Finding]:
    """Every check, in the order in which trouble should be fixed."""
    environment = _environment(store)
    return [
        *_packages(),
        *_families(),
        *_toolkit(),
        *_directories(),
        *_daemon(socket),
        *_store(store, environment, socket),
        *_device(environment),
    ]


def _packages() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("ok", "python", f"{version} ({sys.executable})")
    for role, packages, status, extra in (
        ("client packages", CLIENT_PACKAGES, "fail", "ascend-kaas"),
        ("daemon packages", DAEMON_PACKAGES, "warn", "ascend-kaas[daemon]"),
    ):
        missing = [name for name in packages if not _is_installed(name)]
        if missing:
            advice = f"pip install '{extra}'" + (" where the daemon runs" if status == "warn" else "")
            yield Finding(
                "warn" if status == "warn" else "fail", role, f"missing: {', '.join(missing)}", advice
            )
        else:
            yield Finding("ok", role, ", ".join(packages))


def _families() -> Iterator[Finding]:
    from kaas.kernel_library.registry import broken_families, families

    for entry, reason in broken_families().items():
        yield Finding("fail", "kernel family", f"{entry}: {reason}", "repair or uninstall that package")
    yield Finding("ok", "kernel families", ", ".join(sorted(families())))


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _toolkit() -> Iterator[Finding]:
    try:
        # By name: the client package itself must not depend on the compiler's.
        toolkit = importlib.import_module("kaas.compiler.toolkit").find_toolkit(os.environ)
    except KaasError as error:
        yield Finding("fail", "toolkit", error.message, error.hint or "install CANN and set ASCEND_HOME_PATH")
        return
    except ImportError as error:
        yield Finding("fail", "toolkit", f"the compiler cannot be imported: {error}", "reinstall ascend-kaas")
        return
    if toolkit.kind == "cann":
        yield Finding("ok", "toolkit", f"CANN {toolkit.identity.cann_version} at {toolkit.home}")
        return
    yield Finding(
        "warn",
        "toolkit",
        f"the CPU twin at {toolkit.home}: results are emulated, nothing runs on an NPU",
        "on an NPU node, install CANN and set ASCEND_HOME_PATH",
    )
    compiler = os.environ.get("CXX") or "g++"
    found = shutil.which(compiler)
    if found:
        yield Finding("ok", "twin compiler", found)
    else:
        yield Finding("fail", "twin compiler", f"{compiler} is not found", "install g++, or set CXX")
    yield from _executable("twin directory", toolkit.home)


def _directories() -> Iterator[Finding]:
    home = os.environ.get("HOME", "")
    if not home or not os.access(home, os.W_OK):
        yield Finding("ok", "home", f"{home or 'HOME is not set'}: not writable, which clients do not need")
    try:
        temporary = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        yield Finding("fail", "temporary directory", str(error), "set TMPDIR to a writable directory")
        return
    yield from _executable("temporary directory", temporary)


def _executable(subject: str, directory: Path) -> Iterator[Finding]:
    try:
        flags = os.statvfs(directory).f_flag
    except OSError as error:
        yield Finding("fail", subject, f"{directory}: {error.strerror}", "create it, or point elsewhere")
        return
    if flags & os.ST_NOEXEC:
        yield Finding(
            "fail",
            subject,
            f"{directory} is mounted noexec, so code built there cannot be run",
            "set TMPDIR and KAAS_TWIN_ROOT to a file system without noexec",
        )
    else:
        yield Finding("ok", subject, str(directory))


def _daemon(socket: Path) -> Iterator[Finding]:
    problem = probe(socket)
    if problem is not None:
        yield Finding("fail", "daemon", problem.message, problem.hint or "")
        return
    from kaas.client.daemon_link import READINESS, DaemonLink

    link = DaemonLink(socket)
    try:
        if link.health(READINESS):
            yield Finding("ok", "daemon", f"ready at {socket}")
        else:
            advice = "wait a few seconds; if it stays so, its log says why"
            yield Finding("warn", "daemon", f"serves at {socket}, compile workers are not warm", advice)
    except KaasError as error:
        yield Finding("fail", "daemon", error.message, error.hint or "look into the daemon's log")
    finally:
        link.close()


def _environment(store: Path) -> Environment | None:
    from kaas.cache.environment_file import read_environment

    return read_environment(store)


def _store(store: Path, environment: Environment | None, socket: Path) -> Iterator[Finding]:
    if not store.is_dir():
        yield Finding("fail", "store", f"{store} is not there", "start the daemon once, or set KAAS_STORE")
        return
    yield from _placement(store)
    if environment is None:
        advice = "start the daemon once; if it runs, join the group that may read its store"
        yield Finding("fail", "store", f"{store} has no environment that this user can read", advice)
        return
    target, toolchain = environment.target, environment.toolchain
    yield Finding(
        "ok",
        "store",
        f"{store}: {target.soc_name} ({environment.target_source}), "
        f"{toolchain.kind} {toolchain.cann_version}, tilelang {environment.tilelang_version}",
    )
    from kaas.cache.layout import StoreLayout

    layout = StoreLayout(store)
    if layout.artifacts.is_dir() and not os.access(layout.artifacts, os.R_OK | os.X_OK):
        yield Finding(
            "warn", "store", "artifacts are not readable by this user", "hits go through the daemon"
        )
    if _is_installed("diskcache"):  # elsewhere no daemon runs, and the store is somebody else's
        yield from _modes(layout)
        yield from _contents(layout, socket if Path(environment.locality.socket) == socket else None)
    yield from _quarantine(layout.quarantine)
    yield from _space(store)


def _placement(store: Path) -> Iterator[Finding]:
    from kaas.cache.mounts import mount_of

    mount = mount_of(store)
    if mount is not None and mount.is_network:
        yield Finding(
            "fail",
            "store",
            f"{store} lies on {mount.source} ({mount.type}), a network file system",
            "name a local directory with KAAS_STORE, or set allow_network_fs for the daemon",
        )


def _modes(layout: StoreLayout) -> Iterator[Finding]:
    from kaas.cache.fsck import permissions

    wrong = list(permissions(layout, repair=False))
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        yield Finding(
            "fail",
            "store permissions",
            f"{wrong[0].path}: {wrong[0].message}{more}",
            "kaas fsck as the daemon's user, or " + wrong[0].cure,
        )


def _contents(layout: StoreLayout, socket: Path | None) -> Iterator[Finding]:
    """The index, the artifacts, and whether they agree; ``socket`` is that of the store's own daemon."""
    from kaas.cache.fsck import Contents

    found = Contents.of(layout)
    if found.artifacts is None:
        yield Finding(
            "fail",
            "artifacts",
            f"{layout.artifacts} is lost: no kernel is stored",
            "start the daemon anew: it makes the directory, and kernels are compiled when asked for",
        )
    elif found.indexed is None:
        state = "is lost" if not os.path.lexists(layout.index) else "cannot be read"
        advice = "start the daemon anew: it makes the index from the artifacts; kernels are served meanwhile"
        if found.artifacts:
            yield Finding("warn", "index", f"{layout.index} {state}", advice)
    else:
        # A daemon's own index is right; what it has on disk may be behind until it stops.
        served = None if socket is None else _served(layout, socket)
        if served is not None:
            yield _agreement(*served, "start the daemon anew: it reads them then; they are served meanwhile")
        else:
            advice = "start the daemon: it takes them into its index"
            yield _agreement(found.artifacts, found.indexed, found.lost, advice)


def _served(layout: StoreLayout, socket: Path) -> tuple[int, int, int] | None:
    """Artifacts, how many a running daemon lists, and how many of those are lost; ``None`` without a daemon.

    Where they differ, the daemon gets some time: it may be storing one, or reading its store after a start.
    """
    from kaas.cache.fsck import Contents
    from kaas.client.daemon_link import DaemonLink

    if probe(socket) is not None:
        return None
    link = DaemonLink(socket)
    try:
        patience = time.monotonic() + CATCH_UP_S
        before = -1
        while True:
            waiting = int(link.usage()["in_memory"]["kernels"])
            listed = link.list_kernels(state="ready", page_size=1).total - waiting
            stored = Contents.of(layout).artifacts or 0
            if listed != before:
                patience = time.monotonic() + CATCH_UP_S
            if listed == stored or time.monotonic() > patience:
                return stored, listed, max(0, listed - stored)
            before = listed
            time.sleep(CATCH_UP_S / 10)
    except KaasError:
        return None  # which is a finding of its own
    finally:
        link.close()


def _agreement(stored: int, indexed: int, lost: int, advice: str) -> Finding:
    if lost:
        return Finding(
            "warn",
            "artifacts",
            f"{lost} of {indexed} indexed artifacts are lost",
            "nothing to do: they are compiled when asked for; kaas prewarm brings them back sooner",
        )
    if indexed < stored:
        message = f"{stored} stored, {indexed} indexed: lists lack {stored - indexed}"
        return Finding("warn", "artifacts", message, advice)
    return Finding("ok", "artifacts", f"{stored} stored, {indexed} indexed")


def _space(store: Path) -> Iterator[Finding]:
    status = os.statvfs(store)
    free = status.f_bavail * status.f_frsize
    if not free or (status.f_files and not status.f_favail):
        what = "not a byte" if not free else "not a file more"
        yield Finding(
            "fail",
            "store space",
            f"the file system of {store} is full: {what} can be stored, stored kernels are served",
            "free some space, lower store_soft_bytes so that more is evicted, or move the store",
        )
    elif free < LOW_SPACE_BYTES:
        yield Finding("warn", "store space", f"{free >> 20} MiB free", "free some space, or move the store")
    else:
        yield Finding("ok", "store space", f"{free >> 30} GiB free")


def _quarantine(directory: Path) -> Iterator[Finding]:
    try:
        damaged = sum(1 for entry in directory.iterdir() if not entry.name.endswith(".json"))
    except OSError:
        return
    if damaged:
        advice = f"the records in {directory} say why; if damage goes on, look at the disk"
        yield Finding("warn", "quarantine", f"{damaged} artifacts are out of service", advice)


def _device(environment: Environment | None) -> Iterator[Finding]:
    if environment is None:
        return
    from kaas.client.device import open_device

    try:
        device = open_device(environment)
        name, info = device.runtime.soc_name, device.runtime.device_info
    except KaasError as error:
        advice = "load the driver's and CANN's environment (set_env.sh), or start the daemon anew"
        yield Finding("fail", "device", error.message, error.hint or advice)
        return
    kind = "CPU twin of " if device.is_twin else ""
    yield Finding(
        "ok", "device", f"{kind}{name}, {info.cube_cores} cube and {info.vector_cores} vector cores"
    )
