"""Urgency: work that nobody waits for leaves the processor to others, and is hurried when somebody comes."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

from kaas.compiler.process_tree import children_of

_GENTLE = 19
_SOMEWHAT_GENTLE = 5
_RLIMIT_OF_NICE_0 = 20  # see getrlimit(2)
_CAP_SYS_NICE = 23
_PROC = Path("/proc")


def be_gentle() -> None:
    """Let everybody else run first; what this process starts inherits it.

    As far as it can be taken back: without the right to lower its niceness again, a process that somebody
    comes to wait for would stay behind all others.
    """
    gentle = _GENTLE if may_be_hurried() else _SOMEWHAT_GENTLE
    _renice(os.getpid(), max(gentle, own_niceness()))


def be_as_gentle_in_this_session() -> None:
    """Carry this process's niceness over to the session that it has just begun.

    Where the kernel shares the processor between sessions first (autogroups), niceness counts only inside of
    one, and a new session has none.
    """
    niceness = own_niceness()
    if niceness > 0:
        _renice_session(os.getpid(), niceness)


def hurry(root: int, niceness: int | None = None) -> None:
    """Take :func:`be_gentle` back for ``root`` and everything below it, as far as that is allowed: down to
    ``niceness``, or to that of this process."""
    niceness = own_niceness() if niceness is None else niceness
    # A process before its children: those that it starts from now on are as it is.
    pending = [root]
    while pending:
        pid = pending.pop()
        _renice(pid, niceness)
        pending += children_of(pid)


def own_niceness() -> int:
    """Of this process; ordinary is 0, 19 lets everybody else run first."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def may_be_hurried() -> bool:
    """Whether this process could take its niceness back."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if soft == resource.RLIM_INFINITY or soft >= _RLIMIT_OF_NICE_0:
        return True
    # The superuser of a container commonly has not got it.
    with contextlib.suppress(OSError, ValueError):
        for line in (_PROC / "self" / "status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_NICE & 1)
    return False


def _renice(pid: int, niceness: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
    _renice_session(pid, niceness)


def _renice_session(pid: int, niceness: int) -> None:
    # Not every kernel has it; and it takes only so many changes a second from a process without privileges.
    with contextlib.suppress(OSError):
        (_PROC / str(pid) / "autogroup").write_text(f"{niceness}\n")
