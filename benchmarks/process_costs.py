"""What processes use: CPU seconds of whole trees, resident memory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil


def tree_cpu_s(pid: int) -> float:
    """User and system seconds of a process with all its descendants, living and reaped."""
    process = psutil.Process(pid)
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = member.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def resident_bytes(pid: int) -> int:
    """Resident set of one process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def own_cpu_s(pid: int) -> float:
    """CPU seconds that the live threads of a process have used, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total * 1e-9
