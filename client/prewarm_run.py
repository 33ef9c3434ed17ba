"""A pre-warm as it goes: what came of each entry, what is left, how long that will take."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kaas.client.compile_plan import CostTable
    from kaas.client.manifest import Entry


class Task(NamedTuple):
    """One entry to warm; ``position`` counts the manifest's kernels from 0."""

    position: int
    entry: Entry


class TaskEnd(NamedTuple):
    """What came of one task: a key and how, or an error's record. ``where`` names the node, if it is not
    this one; ``seconds`` is from the task's start to its end."""

    task: Task
    key: str = ""
    outcome: str = ""
    seconds: float = 0.0
    error: dict[str, Any] | None = None
    where: str = ""


def in_order(tasks: Iterable[Task]) -> list[Task]:
    """What matters most first; of equal weight as the manifest has it."""
    return sorted(tasks, key=lambda task: (-task.entry.weight, task.position))


class PrewarmRun:
    """Counts ends. What was there already costs no time, so only compiles tell how fast it goes."""

    def __init__(
        self, tasks: Sequence[Task], costs: CostTable, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tasks = tuple(tasks)
        self.outcomes: Counter[str] = Counter()
        self.failures: list[TaskEnd] = []
        self.ready = 0
        self._costs = costs
        self._clock = clock
        self._began = clock()
        self._left = sum(self._cost(task) for task in tasks)
        self._compiled = 0.0

    @property
    def total(self) -> int:
        """Tasks in all."""
        return len(self.tasks)

    @property
    def done(self) -> int:
        """Tasks that are ready or failed."""
        return self.ready + len(self.failures)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    def note(self, end: TaskEnd) -> None:
        """One more task is done."""
        cost = self._cost(end.task)
        self._left = max(0.0, self._left - cost)
        if end.error is not None:
            self.failures.append(end)
            return
        self.ready += 1
        self.outcomes[end.outcome] += 1
        if end.outcome in ("compiled", "joined"):
            self._compiled += cost

    def eta_s(self) -> float | None:
        """Seconds until the end if all that is left has to be compiled; ``None`` before anything was."""
        if self.done == self.total:
            return 0.0
        if not self._compiled:
            return None
        return self.elapsed_s * self._left / self._compiled

    def _cost(self, task: Task) -> float:
        return self._costs.seconds(task.entry.spec.family)


def failures_record(run: PrewarmRun, about: dict[str, Any]) -> dict[str, Any]:
    """Everything that failed, as plain values; ``about`` says which part of which manifest this was."""
    return {
        **about,
        "total": run.total,
        "ready": run.ready,
        "failed": len(run.failures),
        "not_reached": run.total - run.done,
        "failures": [
            {
                "position": end.task.position,
                "line": end.task.entry.line,
                "spec": end.task.entry.spec.to_record(),
                "soc_name": end.task.entry.soc_name,
                "where": end.where,
                "error": end.error,
            }
            for end in sorted(run.failures, key=lambda end: end.task.position)
        ],
    }
