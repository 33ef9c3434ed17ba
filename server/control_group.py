"""Control groups: how much memory and how many cores this process may use, by cgroup v2 or v1 and /proc.

Files and their meaning: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the Linux kernel.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60
"""cgroup v1 spells "no limit" as a number close to 2**63."""


@dataclass(frozen=True, kw_only=True)
class MemoryRoom:
    """``total_bytes``: what this process and its children can ever have; ``free_bytes``: what is left now,
    page cache that the kernel would give back counted as free."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class _Files:
    """Names of one controller version's files."""

    limit: str
    used: str
    reclaimable: str


_V2 = _Files("memory.max", "memory.current", "inactive_file")
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def memory_room(proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> MemoryRoom:
    """The tightest of the machine's memory and the limits of every control group that this process is in."""
    machine = _machine(proc)
    total, free = machine.total_bytes, machine.free_bytes
    for folder, files in _memory_groups(proc, mount):
        limit = _number(folder / files.limit)
        if limit is None or limit >= _UNLIMITED:
            continue
        total = min(total, limit)
        used = _number(folder / files.used)
        if used is not None:
            reclaimable = _statistic(folder / "memory.stat", files.reclaimable)
            free = min(free, limit - used + reclaimable)
    return MemoryRoom(total_bytes=total, free_bytes=max(0, min(free, total)))


def core_quota(proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Cores that the tightest bandwidth limit leaves, rounded up; ``None`` without one."""
    quotas = []
    for folder in _lineage(proc, mount, mount, ""):
        quotas.append(_ratio(_text(folder / "cpu.max").split()))
    for name in ("cpu", "cpu,cpuacct", "cpuacct,cpu"):
        for folder in _lineage(proc, mount, mount / name, "cpu"):
            quotas.append(
                _ratio([_text(folder / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")])
            )
    known = [quota for quota in quotas if quota is not None]
    return max(1, math.ceil(min(known))) if known else None


def _memory_groups(proc: Path, mount: Path) -> Iterator[tuple[Path, _Files]]:
    for root in (mount, mount / "unified"):
        for folder in _lineage(proc, mount, root, ""):
            yield folder, _V2
    for folder in _lineage(proc, mount, mount / "memory", "memory"):
        yield folder, _V1


def _lineage(proc: Path, mount: Path, root: Path, controller: str) -> Iterator[Path]:
    """This process's group below ``root`` and every group above it, up to and with ``root``.

    Inside a container the path in /proc may be the host's and not exist here; what is mounted as root is
    then the container's own group.
    """
    path = _group_path(proc, controller)
    if path is None:
        return
    folder = root / path.strip("/")
    if ".." in folder.parts or not folder.is_dir():
        folder = root
    while folder.is_dir():
        yield folder
        if folder == root:
            return
        folder = folder.parent


def _group_path(proc: Path, controller: str) -> str | None:
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator and controller in controllers.split(","):
            return path
    return None


def _machine(proc: Path) -> MemoryRoom:
    facts = {}
    for line in _text(proc / "meminfo").splitlines():
        name, _, value = line.partition(":")
        with contextlib.suppress(ValueError, IndexError):
            facts[name] = int(value.split()[0]) << 10
    total = facts.get("MemTotal", _UNLIMITED)
    return MemoryRoom(total_bytes=total, free_bytes=facts.get("MemAvailable", facts.get("MemFree", total)))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _statistic(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _ratio(words: list[str]) -> float | None:
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
        return None  # "max", -1, or no such file
    quota, period = map(int, words)
    return quota / period if quota > 0 and period > 0 else None
