"""Processes and their descendants, by /proc: who they are, what they hold in memory, and how to end them
all."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)
_PROC = Path("/proc")
_HELD = re.compile(rb"^Rss(?:Anon|Shmem):\s*(\d+)", re.MULTILINE)
_READ_BYTES = 16 << 10
_HAS_CHILDREN_FILES = (_PROC / "self" / "task" / str(os.getpid()) / "children").exists()


def become_subreaper() -> None:
    """Orphaned descendants become this process's children, also those that left its session."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int, parent: int) -> None:
    """Have the kernel send ``number`` when ``parent`` (its thread that forked us) ends; 0 takes it back.

    Ends this process at once if the parent is gone already.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if number and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def set_name(name: str) -> None:
    """What process listings show (15 bytes)."""
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def _prctl(option: int, value: int) -> None:
    if (
        _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
        != 0
    ):
        raise OSError(ctypes.get_errno(), "prctl")


def children_of(pid: int) -> list[int]:
    """Direct children, zombies included; none if the process is gone."""
    if not _HAS_CHILDREN_FILES:
        return [child for child, parent in _parents().items() if parent == pid]
    found: list[int] = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as tasks:
        for task in tasks:
            found += map(int, _text(f"{task.path}/children").split())
    return found


def descendants(pid: int) -> list[int]:
    """Everything below ``pid``, parents before children."""
    found: list[int] = []
    pending = [pid]
    while pending:
        for child in children_of(pending.pop()):
            if child not in found:
                found.append(child)
                pending.append(child)
    return found


def held_bytes(pid: int) -> int:
    """Resident bytes that only this process's end gives back: anonymous and shared memory, no file pages."""
    status = _text(f"/proc/{pid}/status")
    return sum(int(kib) << 10 for kib in _HELD.findall(status))


def resident_bytes(pid: int) -> int:
    """Resident set size; 0 if the process is gone."""
    try:
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL each; those that are gone do not matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_descendants(deadline_s: float = 5.0) -> bool:
    """Kill and reap everything below this process, which must be a subreaper. Whether nothing is left."""
    deadline = time.monotonic() + deadline_s
    me = os.getpid()
    while True:
        kill_all(descendants(me))
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not children_of(me):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)


def end_tree(root: int, deadline_s: float = 5.0) -> bool:
    """Kill ``root`` and everything below it; whoever is the parent reaps. Whether nothing is left alive."""
    deadline = time.monotonic() + deadline_s
    seen: set[int] = {root}
    while True:
        seen |= {below for pid in list(seen) for below in descendants(pid)}
        kill_all(seen)
        seen = {pid for pid in seen if is_alive(pid)}
        if not seen:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)


def _text(path: str) -> bytes:
    """A file of /proc, empty when its process is gone. Compiles are measured many times a second, and
    ``pathlib`` costs more than the kernel."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    text = b""
    try:
        while part := os.read(fd, _READ_BYTES):
            text += part
    except OSError:
        return b""
    finally:
        os.close(fd)
    return text


def _parents() -> dict[int, int]:
    """Parent by pid over the whole of /proc, for kernels without ``children`` files."""
    parents: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return parents
