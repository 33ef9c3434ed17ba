"""Recorder: writes this process's get_kernel stream to a file, once in a while and at its end.

Nothing is recorded while kernels are asked for. The memo's handles know how often they were given again, and
the client knows its misses; a thread reads both now and then. One file for each process, replaced as a whole.
Whatever goes wrong is a warning, once.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kaas.client.notices import warn
from kaas.client.process_identity import legible_job_and_rank
from kaas.client.process_record import MAX_KERNELS, SUFFIX, VERSION, ProcessRecord, RecordedKernel
from kaas.proto.errors import KaasError

if TYPE_CHECKING:
    from kaas.client.kernel_client import KernelClient, Question

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Between two writes: short at first, since many a process is ended by force, then longer."""


class Recorder:
    """Records what one client is asked. Thread-safe and fork-safe: a child writes a file of its own."""

    def __init__(self, directory: str, client: KernelClient) -> None:
        self._directory = Path(directory).absolute()
        self._client = client
        self._has_warned = False
        self._begin({})
        atexit.register(self.write)

    def _begin(self, inherited: dict[Question, int]) -> None:
        """What this process asked starts from here; ``inherited`` handles were given so often before it."""
        self._lock = _thread.allocate_lock()
        self._inherited = inherited
        self._started = time.time()
        self._written = -1
        self._generation = object()
        with contextlib.suppress(RuntimeError):  # no more threads: the end of the process writes
            _thread.start_new_thread(self._write_repeatedly, (self._generation,))

    def renew_in_child(self) -> None:
        """After a fork: what the parent asked is the parent's."""
        handles = self._client.memo.copy()
        self._begin({question: handle.memo_hits for question, handle in handles.items()})

    def close(self) -> None:
        """Write once more, and no longer."""
        atexit.unregister(self.write)
        self._generation = object()
        self.write()

    def write(self) -> None:
        """Write the file anew if there is news. Raises nothing."""
        try:
            with self._lock:
                self._write()
        except Exception as error:  # a record is never worth a failed program
            if not self._has_warned:
                self._has_warned = True
                warn("the record of kernels cannot be written to %s: %s", self._directory, error)

    def _write_repeatedly(self, generation: object) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            time.sleep(pause_s)
            if self._generation is not generation:
                return
            self.write()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _write(self) -> None:
        record = self._record()
        asked = sum(kernel.count for kernel in record.kernels)
        if not asked or asked == self._written:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        host = "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in record.host)
        name = f"{host[:64] or 'host'}-{record.pid}-{int(1e6 * record.started_unix):x}{SUFFIX}"
        staged = self._directory / f".{name}.new"
        try:
            staged.write_bytes(msgspec.json.encode(record))
            staged.replace(self._directory / name)
        except BaseException:
            with contextlib.suppress(OSError):
                staged.unlink()
            raise
        self._written = asked

    def _record(self) -> ProcessRecord:
        client = self._client
        found: dict[Question, RecordedKernel] = {}
        misses = client.misses.copy()
        for question, handle in client.memo.copy().items():
            inherited = self._inherited.get(question)
            miss = misses.pop(question, None)
            outcomes = {"memo": handle.memo_hits - (inherited or 0)}
            if inherited is None and (miss is None or handle.origin == "store"):
                outcomes[handle.origin] = 1
            if miss is not None:
                outcomes |= miss.outcomes
            self._add(found, question, outcomes, miss.waited_s if miss is not None else 0.0)
        for question, miss in misses.items():
            self._add(found, question, miss.outcomes, miss.waited_s)
        kernels = list(found.values())
        left_out = max(0, len(kernels) - MAX_KERNELS)
        try:
            environment = client.published_environment()
        except KaasError:
            environment = None
        job, rank = legible_job_and_rank()
        return ProcessRecord(
            version=VERSION,
            host=os.uname().nodename.encode("utf-8", "replace").decode(),
            pid=os.getpid(),
            job=job,
            rank=rank,
            started_unix=self._started,
            written_unix=time.time(),
            soc_name=environment.target.soc_name if environment else "",
            cann_version=environment.toolchain.cann_version if environment else "",
            left_out=left_out,
            kernels=kernels[:MAX_KERNELS],
        )

    def _add(
        self,
        found: dict[Question, RecordedKernel],
        question: Question,
        outcomes: dict[str, int],
        waited_s: float,
    ) -> None:
        outcomes = {name: count for name, count in outcomes.items() if count > 0}
        if not outcomes:
            return
        spec, soc_name = question
        found[question] = RecordedKernel(
            spec=msgspec.Raw(spec.canonical()),
            soc_name=soc_name or "",
            count=sum(outcomes.values()),
            waited_s=round(waited_s, 6),
            outcomes=outcomes,
        )
