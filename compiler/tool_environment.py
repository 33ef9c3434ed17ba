"""The environment of compilers and workers: built from a list of allowed variables, never inherited whole.

Whatever reaches a compiler but not the key (CPATH, C_INCLUDE_PATH, CCC_OVERRIDE_OPTIONS, LD_PRELOAD ...)
could change a binary behind the key's back.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from kaas.proto.toolchain import ToolchainKind

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What an interpreter needs to start and find its packages, and where the toolkit's compiler lies.
_WORKER_PASSES = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "BISHENG_HOME",
    "HOME",
)


def tool_environment(
    home: Path, kind: ToolchainKind, environ: Mapping[str, str], scratch: Path | None = None
) -> dict[str, str]:
    """For bisheng and ld.lld of the toolkit at ``home``. ``scratch`` becomes their HOME and TMPDIR.

    The twin's tools are scripts that call the host's g++, so they get the caller's PATH; a CANN compiler gets
    a fixed one.
    """
    folders = [str(home / "bin")]
    if kind == "twin":
        folders += [environ.get("PATH") or _SYSTEM_PATH, str(Path(sys.executable).parent)]
    folders.append(_SYSTEM_PATH)
    result = {
        "PATH": ":".join(folders),
        "LC_ALL": "C",
        "LANG": "C",
        "ASCEND_HOME_PATH": str(home),
        "ASCEND_TOOLKIT_HOME": str(home),
        "SOURCE_DATE_EPOCH": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if kind == "cann":
        result["LD_LIBRARY_PATH"] = str(home / "lib64")
    if scratch is not None:
        result |= {"HOME": str(scratch), "TMPDIR": str(scratch)}
    return result


def worker_environment(environ: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """For a process that imports TileLang: single-threaded libraries, no torch backend autoload, no TileLang
    cache."""
    passed = {name: environ[name] for name in _WORKER_PASSES if environ.get(name)}
    return passed | {
        "LC_ALL": "C.UTF-8",
        "TMPDIR": str(scratch),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TVM_NUM_THREADS": "1",
        "TILELANG_DISABLE_CACHE": "1",
        "TILELANG_AUTO_TUNING_DISABLE_CACHE": "1",
        "TILELANG_CACHE_DIR": str(scratch / "tilelang"),
        "TILELANG_PRINT_ON_COMPILATION": "0",
    }
