"""Worker: the process that does one job, start to end, and leaves its result in a memory file."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from kaas.compiler.device_build import build_device_binary
from kaas.compiler.frames import Order, Result, encode
from kaas.compiler.guarded_process import OUTPUT_FILE_LIMIT_BYTES
from kaas.compiler.job import CompileJob, CompileLimits, CompileOutput
from kaas.compiler.loaded_generator import GENERATOR_STAGE, LoadedGenerator
from kaas.compiler.lowering import lower
from kaas.compiler.process_tree import die_with_parent, set_name
from kaas.compiler.toolkit import read_toolkit
from kaas.compiler.urgency import be_gentle
from kaas.kernel_library.registry import parse_spec
from kaas.proto.errors import CompileFailed, CompileOutOfMemory, InternalError, KaasError

LOG_TAIL_BYTES = 8000

_GC_THRESHOLD = 200_000
"""Objects between collections: a process that lives for a second has little to collect."""

BEGAN = struct.Struct("d")
"""When a worker began its job (Unix seconds), for who waits for it."""

SetStage = Callable[[str], None]


def run_worker(
    take_order: Callable[[], Order | None],
    loaded: LoadedGenerator,
    *,
    supervisor: int,
    result_fd: int,
    log_fd: int,
    set_stage: SetStage,
    settled_fd: int,
) -> NoReturn:
    """Do one job in this freshly forked process and exit; the supervisor reads the rest.

    ``take_order`` waits for the job; without one the process just ends. ``settled_fd`` is told when the
    process begins, with its session, its job and its urgency.
    """
    try:
        die_with_parent(signal.SIGKILL, supervisor)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.setsid()
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        _volunteer_for_the_oom_killer()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # Writing past it is an error of the write, not a signal.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        _limit_file_size()
        gc.set_threshold(_GC_THRESHOLD)
        order = take_order()
        if order is None:
            os._exit(0)
        job = order.job
        set_name("kaas-worker")
        if job.background:
            be_gentle()
        os.write(settled_fd, BEGAN.pack(time.time()))
        os.close(settled_fd)
        result = _result_of(job, loaded, Path(order.folder), log_fd, set_stage)
        set_stage("report")
        _write_all(result_fd, encode(result))
        os._exit(0)
    finally:
        # Whatever went wrong above must not return into the forked copy of the zygote.
        os._exit(70)


def compile_job(
    job: CompileJob, loaded: LoadedGenerator, workdir: Path, set_stage: SetStage
) -> CompileOutput:
    """Lower and build. Raises :class:`KaasError`; resource figures are the supervisor's to fill in."""
    started = time.monotonic()
    family = str(job.spec.get("family"))
    set_stage(GENERATOR_STAGE)
    if job.generator is not None:
        loaded.refuse_unless(job.generator, family)
    set_stage("toolkit")
    toolkit = read_toolkit(
        Path(job.toolkit_home), bisheng_home=os.environ.get("BISHENG_HOME"), known=job.toolchain
    )
    if job.toolchain is not None and toolkit.identity != job.toolchain:
        raise CompileFailed(
            f"the toolkit at {toolkit.home} has changed since the daemon looked at it",
            hint="restart the daemon, so that it takes the new toolkit into its keys",
            stage="toolkit",
            deterministic=False,
        )
    set_stage("lower")
    lowered = lower(parse_spec(job.spec), job.target)
    if job.generator is not None:
        loaded.refuse_unless(job.generator, family)  # a builder may import what the zygote had no need of
    left = job.limits.wall_s - (time.monotonic() - started)
    binary = build_device_binary(
        lowered.source,
        toolkit,
        job.options,
        CompileLimits(wall_s=left, memory_bytes=job.limits.memory_bytes),
        workdir,
        on_stage=set_stage,
    )
    return CompileOutput(
        image=binary.image,
        source=lowered.source,
        log=binary.log,
        launch=lowered.launch,
        choices=lowered.choices,
        compile_seconds=time.monotonic() - started,
        cpu_seconds=0.0,
        peak_rss_bytes=0,
    )


def _result_of(
    job: CompileJob, loaded: LoadedGenerator, workdir: Path, log_fd: int, set_stage: SetStage
) -> Result:
    try:
        return Result(output=compile_job(job, loaded, workdir, set_stage))
    except KaasError as error:
        if error.details.get("stage") == "lower":
            # TVM's own complaints go to standard error, past the exception.
            said = log_tail(log_fd)
            error.details["log_tail"] = f"{said}\n{error.details.get('log_tail', '')}"[
                -2 * LOG_TAIL_BYTES :
            ].strip()
        return Result(error=error.to_record())
    except MemoryError:
        refused = CompileOutOfMemory(
            f"the compile needed more than {job.limits.memory_bytes >> 20} MiB",
            limit_bytes=job.limits.memory_bytes,
        )
        return Result(error=refused.to_record())
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        wrong = InternalError(f"the compile worker failed: {type(error).__name__}: {error}")
        wrong.details["log_tail"] = log_tail(log_fd)
        return Result(error=wrong.to_record())


def log_tail(log_fd: int) -> str:
    """The end of what the worker has printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    size = os.fstat(log_fd).st_size
    return os.pread(log_fd, LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES)).decode(errors="replace").strip()


def _volunteer_for_the_oom_killer() -> None:
    """A compile is worth less than the daemon or a training rank, and is repeated more cheaply."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _limit_file_size() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = OUTPUT_FILE_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(OUTPUT_FILE_LIMIT_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
