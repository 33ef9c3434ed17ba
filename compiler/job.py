"""Jobs and what comes of them: the records that pass between the daemon and its compile workers."""

from __future__ import annotations

from typing import Any

import msgspec

from kaas.proto.launch import LaunchMetadata
from kaas.proto.passport import Generator
from kaas.proto.target import Target
from kaas.proto.toolchain import Toolchain


class CompileLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one compile may use: wall-clock seconds, and resident bytes of all its processes together."""

    wall_s: float
    memory_bytes: int


class CompileJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kernel to compile. ``spec`` is the plain form of a spec, ``options`` the passport's options.

    With ``toolchain`` set, the worker refuses to compile when the toolkit at ``toolkit_home`` is no longer
    that one: a binary must never be filed under another compiler's key. ``generator`` does the same for
    TileLang, our lowering and the family, which the worker has from a zygote that may be newer than the key.
    ``background`` work leaves the processor to everybody else.
    """

    spec: dict[str, Any]
    target: Target
    toolkit_home: str
    options: tuple[str, ...]
    limits: CompileLimits
    toolchain: Toolchain | None = None
    generator: Generator | None = None
    background: bool = False


class CompileOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One compiled kernel.

    ``compile_seconds`` is wall time from the worker's fork to its end, ``cpu_seconds`` user and system time
    of all its processes, ``peak_rss_bytes`` their largest resident size on top of what the worker was born
    with.
    """

    image: bytes
    source: str
    log: str
    launch: LaunchMetadata
    choices: dict[str, Any]
    compile_seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
