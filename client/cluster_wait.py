"""Waiting until every node of a cluster holds a manifest, and by how much they differ in that.

Each node is asked from a thread of its own and answers as soon as it holds enough: nobody polls a node that
is up. One that is down or refuses is asked again until the time is over, since a rollout restarts nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kaas.client.coverage_question import ANSWER_LIMIT_S, CoverageAnswer, Node
from kaas.proto.errors import DaemonUnavailable, KaasError, PermissionDenied, ShuttingDown

if TYPE_CHECKING:
    from kaas.client.manifest import Entry

LONGEST_WAIT_S = 20.0
"""Of one question; a node that goes away is noticed no later."""

RETRY_S = 1.0
STEP_S = 0.2
GRACE_S = 2.0
"""For answers that are under way when the time is over; a node that swallows requests costs no more."""

LISTED = 20

State = Literal["waiting", "ready", "down", "refused"]


class NodeProgress(NamedTuple):
    """How far one node is; ``ready_after_s`` runs from the start of the wait until it held enough."""

    name: str
    state: State
    answer: CoverageAnswer | None = None
    ready_after_s: float | None = None
    error: KaasError | None = None


class Outcome(NamedTuple):
    """How a wait ended."""

    coverage: float
    nodes: tuple[NodeProgress, ...]
    waited_s: float

    @property
    def complete(self) -> bool:
        """Every node holds enough."""
        return all(node.state == "ready" for node in self.nodes)

    @property
    def skew_s(self) -> float | None:
        """Seconds between the first node that was ready and the last; ``None`` until all are."""
        times = [node.ready_after_s for node in self.nodes if node.ready_after_s is not None]
        return max(times) - min(times) if len(times) == len(self.nodes) and times else None


Told = Callable[[NodeProgress], None]


class ClusterWait:
    """One wait for many nodes."""

    def __init__(
        self,
        nodes: Sequence[Node],
        entries: Sequence[Entry],
        coverage: float,
        *,
        all_targets: bool = False,
        told: Told = lambda _: None,
    ) -> None:
        self._nodes = nodes
        self._entries = entries
        self._coverage = coverage
        self._all_targets = all_targets
        self._told = told
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._progress = {number: NodeProgress(node.name, "waiting") for number, node in enumerate(nodes)}
        self._began = time.monotonic()

    def run(self, timeout: float | None) -> Outcome:
        """Wait until all nodes hold enough, or until ``timeout`` seconds are over (0: ask each once)."""
        self._began = time.monotonic()
        deadline = None if timeout is None else self._began + timeout
        threads = [
            threading.Thread(target=self._follow, args=(number, deadline), daemon=True)
            for number in range(len(self._nodes))
        ]
        for thread in threads:
            thread.start()
        grace_s = GRACE_S if timeout else ANSWER_LIMIT_S
        try:
            for thread in threads:
                while thread.is_alive() and (deadline is None or time.monotonic() < deadline + grace_s):
                    thread.join(STEP_S)
        finally:
            self._over.set()
        with self._lock:
            nodes = tuple(map(_at_the_end, self._progress.values()))
        return Outcome(self._coverage, nodes, time.monotonic() - self._began)

    def _follow(self, number: int, deadline: float | None) -> None:
        node = self._nodes[number]
        first = True
        while not self._over.is_set():
            left = LONGEST_WAIT_S if deadline is None else deadline - time.monotonic()
            if left <= 0 and not first:
                return
            try:
                answer = node.ask(
                    self._entries,
                    all_targets=self._all_targets,
                    coverage=self._coverage,
                    # The first answer comes at once, so that everybody sees where each node stands.
                    wait_s=0.0 if first else min(max(left, 0.0), LONGEST_WAIT_S),
                    missing_limit=LISTED,
                )
            except KaasError as error:
                lost = isinstance(error, (DaemonUnavailable, ShuttingDown, PermissionDenied))
                self._tell(number, NodeProgress(node.name, "down" if lost else "refused", error=error))
                first = False
                left = RETRY_S if deadline is None else min(RETRY_S, deadline - time.monotonic())
                self._over.wait(max(left, 0.0))
                continue
            first = False
            if answer.coverage >= self._coverage * (1.0 - 1e-12):
                after = time.monotonic() - self._began
                self._tell(number, NodeProgress(node.name, "ready", answer, ready_after_s=after))
                return
            self._tell(number, NodeProgress(node.name, "waiting", answer))

    def _tell(self, number: int, progress: NodeProgress) -> None:
        if self._over.is_set():
            return
        with self._lock:
            before = self._progress[number]
            self._progress[number] = progress
            held = before.answer.held if before.answer else None
            if before.state != progress.state or (progress.answer and progress.answer.held != held):
                self._told(progress)


def _at_the_end(progress: NodeProgress) -> NodeProgress:
    """A node that has not answered even once is down, as far as anybody can tell."""
    if progress.state != "waiting" or progress.answer is not None:
        return progress
    return progress._replace(state="down", error=DaemonUnavailable(f"{progress.name} does not answer"))


def progress_record(progress: NodeProgress) -> dict[str, Any]:
    """One node as plain values."""
    answer = progress.answer
    record: dict[str, Any] = {
        "node": progress.name,
        "state": progress.state,
        "coverage": answer.coverage if answer else None,
        "total": answer.total if answer else None,
        "held": answer.held if answer else None,
        "soc_name": answer.soc_name if answer else None,
        "cann_version": answer.cann_version if answer else None,
        "ready_after_s": None if progress.ready_after_s is None else round(progress.ready_after_s, 3),
        "missing": list(answer.missing) if answer else [],
        "error": progress.error.to_record() if progress.error else None,
    }
    return record


def outcome_record(outcome: Outcome) -> dict[str, Any]:
    """The whole wait as plain values."""
    skew = outcome.skew_s
    return {
        "complete": outcome.complete,
        "coverage": outcome.coverage,
        "waited_s": round(outcome.waited_s, 3),
        "skew_s": None if skew is None else round(skew, 3),
        "nodes": [progress_record(node) for node in outcome.nodes],
    }
