"""The device build: Ascend C to a loadable image, by bisheng and ld.lld as production runs them.

The source is compiled under a fixed relative name in a fresh folder, so that no path of this node reaches the
image.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kaas.compiler.compile_options import split_options
from kaas.compiler.generator import templates_root
from kaas.compiler.guarded_process import Finished, run_guarded
from kaas.compiler.job import CompileLimits
from kaas.compiler.tool_environment import tool_environment
from kaas.compiler.toolkit import Toolkit
from kaas.proto.errors import CompileFailed, CompileOutOfMemory, CompileTimeout, ToolchainMissing

SOURCE_NAME = "kernel.asc"
RELOCATABLE_NAME = "kernel.rel.o"
IMAGE_NAME = "kernel.o"

LOG_TAIL_CHARS = 8000
_EXCERPT_LINES = 4
_NEAR_LIMIT = 0.8

_OUT_OF_MEMORY = re.compile(
    r"out of memory|virtual memory exhausted|std::bad_alloc|cannot allocate memory", re.IGNORECASE
)
_INNER_CRASH = re.compile(
    r"(due to|by) signal|signal terminated program|internal compiler error: (killed|segmentation)",
    re.IGNORECASE,
)
_ERROR_LINE = re.compile(re.escape(SOURCE_NAME) + r":(\d+)(?::\d+)?:\s*(?:fatal )?error")
_ANY_LINE = re.compile(re.escape(SOURCE_NAME) + r":(\d+)")


@dataclass(frozen=True, kw_only=True)
class DeviceBinary:
    """A loadable image and what the tools printed while they made it."""

    image: bytes
    log: str


def build_device_binary(
    source: str,
    toolkit: Toolkit,
    options: Sequence[str],
    limits: CompileLimits,
    workdir: Path,
    *,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> DeviceBinary:
    """Compile and link ``source`` in the empty folder ``workdir``; ``limits`` hold for both steps together.

    ``options`` are effective options (:mod:`kaas.compiler.compile_options`). Raises :class:`CompileFailed` at
    stage ``bisheng`` or ``link``, :class:`CompileTimeout`, :class:`CompileOutOfMemory`; ToolchainMissing if a
    tool cannot be started.
    """
    compile_options, link_options = split_options(options, templates_root())
    (workdir / SOURCE_NAME).write_text(source, encoding="utf-8")
    deadline = time.monotonic() + limits.wall_s
    steps = (
        ("bisheng", toolkit.bisheng, [*compile_options, SOURCE_NAME], RELOCATABLE_NAME),
        ("link", toolkit.linker, [*link_options, RELOCATABLE_NAME], IMAGE_NAME),
    )
    logs = []
    for stage, tool, arguments, product in steps:
        argv = [str(tool), *arguments, "-o", product]
        on_stage(stage)
        left = CompileLimits(wall_s=max(0.0, deadline - time.monotonic()), memory_bytes=limits.memory_bytes)
        logs.append(_run_step(stage, argv, workdir / product, toolkit, left, limits, source))
    return DeviceBinary(image=(workdir / IMAGE_NAME).read_bytes(), log="".join(filter(None, logs)))


def _run_step(
    stage: str,
    argv: list[str],
    product: Path,
    toolkit: Toolkit,
    left: CompileLimits,
    limits: CompileLimits,
    source: str,
) -> str:
    workdir = product.parent
    environ = tool_environment(toolkit.home, toolkit.kind, os.environ, workdir)
    try:
        finished = run_guarded(argv, cwd=workdir, environ=environ, limits=left)
    except OSError as error:
        raise ToolchainMissing(
            f"{argv[0]} cannot be started: {error.strerror}", hint="check the toolkit", missing=argv[0]
        ) from None
    tail = finished.log[-LOG_TAIL_CHARS:]
    if finished.outcome == "timeout":
        raise CompileTimeout(
            f"the compile was killed after {limits.wall_s:g} s, in stage {stage}",
            limit_s=limits.wall_s,
            stage=stage,
            log_tail=tail,
        )
    if finished.outcome == "memory" or _ran_out_of_memory(finished, limits):
        raise CompileOutOfMemory(
            f"the compile needed more than {limits.memory_bytes >> 20} MiB, in stage {stage}",
            limit_bytes=limits.memory_bytes,
            peak_bytes=finished.peak_bytes,
            stage=stage,
            log_tail=tail,
        )
    if finished.status != 0:
        _raise_failure(stage, finished, source, tail)
    _check_product(stage, product, tail)
    return finished.log


def _ran_out_of_memory(finished: Finished, limits: CompileLimits) -> bool:
    """A tool that was refused memory, or that the kernel killed while it was close to the limit."""
    if finished.status == 0:
        return False
    if finished.status == -signal.SIGKILL and finished.peak_bytes > _NEAR_LIMIT * limits.memory_bytes:
        return True
    return _OUT_OF_MEMORY.search(finished.log) is not None


def _raise_failure(stage: str, finished: Finished, source: str, tail: str) -> NoReturn:
    tool = "bisheng" if stage == "bisheng" else "ld.lld"
    if finished.status < 0:
        name = signal_name(-finished.status)
        raise CompileFailed(
            f"{tool} was killed by {name}", stage=stage, signal=name, log_tail=tail, deterministic=False
        )
    raise CompileFailed(
        f"{tool} failed with status {finished.status}: {_first_error(finished.log)}",
        stage=stage,
        exit_status=finished.status,
        log_tail=tail,
        source_excerpt=source_excerpt(source, finished.log),
        deterministic=_INNER_CRASH.search(finished.log) is None,
    )


def _check_product(stage: str, product: Path, tail: str) -> None:
    """A tool that says it succeeded must have left a regular file with something in it."""
    try:
        status = product.lstat()
        problem = (
            "is not a regular file"
            if not stat.S_ISREG(status.st_mode)
            else "is empty"
            if status.st_size == 0
            else None
        )
    except FileNotFoundError:
        problem = "is missing"
    if problem:
        raise CompileFailed(
            f"the output of stage {stage} {problem} although the tool reported success",
            stage=stage,
            log_tail=tail,
            no_output=True,
            deterministic=True,
        )


def source_excerpt(source: str, log: str) -> str | None:
    """The source around the first line that the log calls an error (or names at all), numbered."""
    match = _ERROR_LINE.search(log) or _ANY_LINE.search(log)
    lines = source.splitlines()
    if match is None or not 1 <= (wanted := int(match.group(1))) <= len(lines):
        return None
    first = max(1, wanted - _EXCERPT_LINES)
    last = min(len(lines), wanted + _EXCERPT_LINES)
    return "\n".join(
        f"{'>' if number == wanted else ' '}{number:5d} | {lines[number - 1]}"
        for number in range(first, last + 1)
    )


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _first_error(log: str) -> str:
    for line in log.splitlines():
        if "error" in line.casefold():
            return line.strip()[:300]
    return log.strip().rpartition("\n")[2][:300] or "it said nothing"
