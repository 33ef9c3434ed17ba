"""Zygote: a process with TileLang imported and warm that forks one supervisor, hence one worker, per job.

``python -m kaas.compiler.zygote`` is started by the pool, never by hand. It holds no lock, no thread, no gRPC
and no device, so forking is safe; it compiles nothing itself. When the daemon's end of the control socket
closes, every job is ended and so is the zygote.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kaas.compiler.frames import (
    Drain,
    KillJob,
    Ready,
    Refused,
    Report,
    StartJob,
    SupervisorEnded,
    decode_command,
    encode,
)
from kaas.compiler.loaded_generator import LoadedGenerator, load_generator
from kaas.compiler.process_tree import (
    become_subreaper,
    children_of,
    die_with_parent,
    end_tree,
    resident_bytes,
    set_name,
)
from kaas.compiler.standby import AT_HAND_AFTER_S, REHEARSED_AFTER_S, Reserve, Standby
from kaas.compiler.toolkit import read_toolkit
from kaas.proto.errors import KaasError, ToolchainMissing
from kaas.proto.toolchain import Toolchain

WARM_UP_SPEC: dict[str, Any] = {"family": "gemm", "m": 128, "n": 256, "k": 256}
WARM_UP_SOC = "Ascend950PR_9579"
WARM_UPS = 4
"""So often are the interpreter's and TVM's hot paths walked before they are as fast as they get: a fifth."""

_MESSAGE_BYTES = 1 << 16
_FAREWELL_S = 3.0


class Zygote:
    """The control loop: single-threaded, woken by the control socket and by children that end."""

    def __init__(self, control: socket.socket, work_root: Path, loaded: LoadedGenerator) -> None:
        self._control = control
        self._work_root = work_root
        self._loaded = loaded
        self._job_of: dict[int, int] = {}  # supervisor's pid -> job
        self._poller = select.poll()
        self._reserve = Reserve(
            [
                Standby(self._poller, self._fork_rehearsed, after_s=REHEARSED_AFTER_S),
                Standby(self._poller, self._fork_at_hand, after_s=AT_HAND_AFTER_S),
            ]
        )
        self._toolchains: dict[str, Toolchain] = {}
        self._draining = False
        self._orphaned = False

    def run(self) -> None:
        """Serve until drained or left alone by the daemon."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake = (wake_read, wake_write)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_write)
        self._poller.register(self._control, select.POLLIN)
        self._poller.register(wake_read, select.POLLIN)
        while not (self._orphaned or (self._draining and not self._job_of)):
            wait_s = self._reserve.wait_s
            ready = {fd for fd, _ in self._poller.poll(None if wait_s is None else 1000 * wait_s)}
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 1 << 16)
            self._reserve.hear(ready)
            if self._control.fileno() in ready:
                self._obey()
            self._reap()
            # Here, not above: one that was just given a job must not be replaced while that is compiled.
            self._reserve.set_idle(not self._job_of and not self._draining)
            self._reserve.act()
        self._reserve.dismiss()
        if self._orphaned:
            self._say_farewell()

    def _obey(self) -> None:
        data, fds, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 1)
        if not data:
            self._orphaned = True
            return
        command = decode_command(data)
        if isinstance(command, StartJob):
            with socket.socket(fileno=fds[0]) as connection:
                self._start(command, connection)
        elif isinstance(command, KillJob):
            for pid, job_id in self._job_of.items():
                if job_id == command.job_id:
                    end_tree(pid)
        elif isinstance(command, Drain):
            self._draining = True
            self._reserve.dismiss()

    def _start(self, command: StartJob, connection: socket.socket) -> None:
        self._look_at_toolkit(command)
        folder = self._work_root / f"job-{command.job_id}"
        pid = self._reserve.give(command.toolkit_home, folder, connection)
        if pid is None:
            from kaas.compiler.supervisor import supervise

            pid = self._fork(lambda: supervise(connection, folder, self._loaded))
        if pid is None:
            self._report(SupervisorEnded(job_id=command.job_id, status=70))
        else:
            self._job_of[pid] = command.job_id

    def _fork(self, run: Callable[[], None]) -> int | None:
        """The process that runs ``run`` and ends; ``None`` when there is no room for one."""
        try:
            pid = os.fork()
        except OSError as error:
            print(f"fork failed: {error}", file=sys.stderr, flush=True)
            return None
        if pid:
            return pid
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in self._wake:
                os.close(fd)
            self._control.close()
            self._reserve.close_in_child()
            run()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _fork_rehearsed(self, ours: socket.socket, theirs: socket.socket) -> int | None:
        return self._fork_standby(ours, theirs, self._rehearse_job)

    def _fork_at_hand(self, ours: socket.socket, theirs: socket.socket) -> int | None:
        return self._fork_standby(ours, theirs, None)

    def _fork_standby(
        self, ours: socket.socket, theirs: socket.socket, rehearse: Callable[[], None] | None
    ) -> int | None:
        from kaas.compiler.supervisor import stand_by

        def run() -> None:
            ours.close()
            stand_by(theirs, self._loaded, rehearse)

        return self._fork(run)

    def _rehearse_job(self) -> None:
        """In a worker that stands by: walk all that a job does before the toolkit's programs run."""
        rehearse()
        self._loaded.as_on_disk(WARM_UP_SPEC["family"])
        for home, toolchain in self._toolchains.items():
            _read_toolkit(home, toolchain)

    def _look_at_toolkit(self, command: StartJob) -> None:
        """Hash a toolkit once, here, so that every worker inherits the digests and only checks the files'
        state."""
        if command.toolchain is None or self._reserve.knows(command.toolkit_home):
            return
        self._reserve.learn(command.toolkit_home)
        self._toolchains[command.toolkit_home] = command.toolchain
        _read_toolkit(command.toolkit_home, command.toolchain)

    def _reap(self) -> None:
        ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            job_id = self._job_of.pop(pid, None)
            if job_id is not None:
                ended = True
                self._report(SupervisorEnded(job_id=job_id, status=os.waitstatus_to_exitcode(status)))
        if ended:
            self._end_orphans()

    def _end_orphans(self) -> None:
        """What a killed supervisor left behind has become ours."""
        for pid in children_of(os.getpid()):
            if pid not in self._job_of and pid not in self._reserve.pids:
                end_tree(pid)

    def _report(self, report: Report) -> None:
        with contextlib.suppress(OSError):
            self._control.send(encode(report))

    def _say_farewell(self) -> None:
        """The daemon is gone. Supervisors see it too and clean up; those that do not are ended."""
        deadline = time.monotonic() + _FAREWELL_S
        while self._job_of and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.01)
        for pid in children_of(os.getpid()):
            end_tree(pid)
        shutil.rmtree(self._work_root, ignore_errors=True)


def _read_toolkit(home: str, toolchain: Toolchain) -> None:
    with contextlib.suppress(KaasError):  # the worker reports what is wrong
        read_toolkit(Path(home), bisheng_home=os.environ.get("BISHENG_HOME"), known=toolchain)


def warm_up() -> None:
    """Import everything a job needs and lower a small kernel. Raises :class:`ToolchainMissing`.

    Whatever takes part in lowering is imported here, not above, so that it can be identified around it.
    """
    try:
        import tilelang  # noqa: F401
    except Exception as error:
        raise ToolchainMissing(
            f"TileLang cannot be imported: {type(error).__name__}: {error}",
            hint="pip install 'ascend-kaas[daemon]'",
            missing="tilelang",
        ) from error
    import kaas.compiler.supervisor  # noqa: F401
    from kaas.kernel_library.registry import families

    families()
    for _ in range(WARM_UPS):
        rehearse()


def rehearse() -> None:
    """Lower a small kernel and throw it away."""
    from kaas.compiler.lowering import lower
    from kaas.kernel_library.registry import parse_spec
    from kaas.kernel_library.targets import target_named

    try:
        lower(parse_spec(WARM_UP_SPEC), target_named(WARM_UP_SOC))
    except KaasError as error:
        # A family that does not lower is a matter for the jobs that ask for it.
        print(f"warm-up: {error}", file=sys.stderr, flush=True)


def _tidy_memory() -> None:
    """Before the first fork: have children copy no page of ours that they need not."""
    gc.collect()
    gc.freeze()  # else they would write to every object when they collect
    with contextlib.suppress(AttributeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)  # what is free here they would fill, page by page, each copied first


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the pool gives the control socket's number, its working folder and its own pid."""
    parser = argparse.ArgumentParser(prog="python -m kaas.compiler.zygote", description=__doc__)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--work-root", type=Path, required=True)
    parser.add_argument("--daemon", type=int, required=True, help="pid of the daemon")
    options = parser.parse_args(arguments)
    # Until it can notice the control socket closing, the zygote just dies with the daemon.
    die_with_parent(signal.SIGKILL, options.daemon)
    set_name("kaas-zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=options.control_fd)
    control.set_inheritable(False)
    become_subreaper()
    try:
        loaded = load_generator(warm_up)
    except KaasError as error:
        control.send(encode(Refused(error=error.to_record())))
        return 1
    _tidy_memory()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        print(f"{threads} threads after warm-up; a fork takes only one along", file=sys.stderr, flush=True)
    die_with_parent(0, options.daemon)
    control.send(encode(Ready(resident_bytes=resident_bytes(os.getpid()), threads=threads)))
    Zygote(control, options.work_root, loaded).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
