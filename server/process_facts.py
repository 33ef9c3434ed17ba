"""Process facts: what the operating system says of a process or a user on this node."""

from __future__ import annotations

import functools
import os
import pwd
from pathlib import Path
from typing import Literal

Liveness = Literal["alive", "ended", "unknown"]


@functools.lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """The user's name, or its number where nobody knows a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when there is none that we can see."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def liveness(pid: int, started: int) -> Liveness:
    """Whether the process that had this number and start time still runs."""
    if pid <= 0 or started <= 0:
        return "unknown"
    return "alive" if start_ticks(pid) == started else "ended"


def resident_bytes() -> int:
    """Memory that this process takes now; 0 where the operating system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
