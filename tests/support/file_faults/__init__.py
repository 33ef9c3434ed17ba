"""File operations that fail on purpose, counted from the outside of Python: the shim and its controls."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SHIM_SOURCE = Path(__file__).with_name("shim.cpp")


@dataclass(frozen=True)
class Fault:
    """One way in which an operation fails: an error number, half of a read or write, or the process dies."""

    name: str
    error: int = 0
    mode: int = 0
    repeat: bool = False


SHORT, KILL = 1, 2
FAULTS = (
    Fault("ENOSPC", errno.ENOSPC),
    Fault("EIO", errno.EIO),
    Fault("EINTR", errno.EINTR),
    Fault("EBUSY", errno.EBUSY),
    Fault("ESTALE", errno.ESTALE),
    Fault("short", mode=SHORT),
    Fault("ENOSPC from there on", errno.ENOSPC, repeat=True),
    Fault("EIO from there on", errno.EIO, repeat=True),
    Fault("ESTALE from there on", errno.ESTALE, repeat=True),
)
DEATH = Fault("kill -9", mode=KILL)


def build_shim(directory: Path) -> Path:
    """The shared object to preload, compiled into ``directory``."""
    target = directory / "file_faults.so"
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        built = Path(scratch) / "file_faults.so"
        command = ["g++", "-O1", "-shared", "-fPIC", "-U_FORTIFY_SOURCE", "-o", str(built), str(SHIM_SOURCE)]
        subprocess.run([*command, "-ldl"], check=True, capture_output=True)
        built.replace(target)
    return target


class Controls:
    """The shim inside this process, which was started with it preloaded."""

    def __init__(self) -> None:
        shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._arm = shim.kaas_faults_arm
        self._arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int]
        self._disarm = shim.kaas_faults_disarm
        self._disarm.restype = ctypes.c_long
        self._fired = shim.kaas_faults_fired
        self._fired.restype = ctypes.c_char_p

    def arm(self, directory: Path, nth: int, fault: Fault) -> None:
        """From now on the ``nth`` operation below ``directory`` fails; 0 only counts."""
        self._arm(os.fsencode(directory), nth, fault.error, fault.mode, fault.repeat)

    def disarm(self) -> int:
        """Nothing fails any more; how many operations there were."""
        return int(self._disarm())

    def fired(self) -> str:
        """The operation that failed, or an empty text."""
        return str(self._fired().decode())
