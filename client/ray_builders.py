"""A Ray cluster as builders: each node's daemon compiles a shard, and what a lost node leaves goes to others.

Ray places one actor on each node and carries plain values back and forth; kernels go from each daemon to
the remote tier that it is configured with, never through Ray.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kaas.client.node_builder import NodeBuilder, PlainEntry
from kaas.client.notices import warn
from kaas.client.prewarm_run import Task, TaskEnd
from kaas.client.sharding import split
from kaas.proto.errors import DaemonUnavailable, InvalidRequest, ToolchainMissing

if TYPE_CHECKING:
    from kaas.client.compile_plan import CostTable

ROUNDS = 3
"""How often what was lost with a node or a daemon is given to those that are left."""

START_LIMIT_S = 300.0
HELD_LIMIT_S = 120.0
_STOP_LIMIT_S = 30.0


class Builder(NamedTuple):
    """One node that compiles."""

    name: str
    node: str
    actor: Any
    identity: str
    cann_version: str


def ends_of_cluster(
    address: str, tasks: Sequence[Task], costs: CostTable, *, label: str = "", builder_config: str = ""
) -> Iterator[TaskEnd]:
    """Share tasks among the nodes of the Ray cluster at ``address`` and yield what comes of each.

    ``address`` is what ``ray.init`` takes: ``host:port``, ``auto``, or ``local`` for a cluster of this
    machine alone, which ends with it. ``builder_config`` is the TOML text for daemons that have to be
    started. Tasks for another CANN version than the cluster's fail. Raises :class:`ToolchainMissing` without
    Ray, and :class:`DaemonUnavailable` when the cluster cannot be reached or no node can build.
    """
    # Ray prints what it has to say of its nodes; standard output is for what comes of the kernels.
    with contextlib.redirect_stdout(sys.stderr):
        ray = _connected(address)
        try:
            yield from _Cluster(ray, costs, label, builder_config).ends(list(tasks))
        finally:
            ray.shutdown()


def _connected(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Nodes may have no accelerator that Ray knows of; it warns about a default that will change.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        # By name: Ray is an extra that few need.
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ToolchainMissing(
            f"--ray needs the Python package ray: {error}", hint="pip install 'ascend-kaas[ray]'"
        ) from None
    local = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise DaemonUnavailable(
            f"the Ray cluster at {address!r} cannot be reached: {error}",
            hint="an address is host:port of the head, auto, or local",
        ) from None
    return ray


class _Cluster:
    def __init__(self, ray: Any, costs: CostTable, label: str, builder_config: str) -> None:
        self._ray = ray
        self._costs = costs
        self._label = label
        self._config = builder_config
        self._actors: dict[str, Any] = {}
        self._errors: dict[str, str] = {}

    def ends(self, tasks: list[Task]) -> Iterator[TaskEnd]:
        """Run all rounds."""
        try:
            builders = self._builders()
            version = builders[0].cann_version
            wrong = [task for task in tasks if task.entry.cann not in ("", version)]
            if len(wrong) == len(tasks):
                legal = [version]
                message = f"the manifest is for other CANN versions than {version}, which the cluster has"
                raise InvalidRequest(message, field="targets.cann", legal=legal)
            left = [task for task in tasks if task.entry.cann in ("", version)]
            for task in wrong:
                error = InvalidRequest(
                    f"it is for CANN {task.entry.cann}", field="targets.cann", legal=version
                )
                yield TaskEnd(task, error=error.to_record())
            for turn in range(ROUNDS):
                if turn:
                    try:
                        builders = self._builders()
                    except DaemonUnavailable as error:
                        warn("%s", error.message)
                        break
                done: set[int] = set()
                for end in self._round(builders, left):
                    done.add(end.task.position)
                    yield end
                left = [task for task in left if task.position not in done]
                if not left:
                    return
                warn("%d kernels were not finished where they were begun, and are given to others", len(left))
            for task in left:
                lost = DaemonUnavailable("no builder was left that finished it")
                yield TaskEnd(task, error=lost.to_record())
        finally:
            self._stop()

    def _builders(self) -> list[Builder]:
        """Nodes that can build, all with equal keys: the largest such group, as shards must fit together."""
        for node in self._ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1 and node["NodeID"] not in self._actors:
                self._actors[node["NodeID"]] = self._placed(node["NodeID"])
        starts = {node: actor.start.remote() for node, actor in self._actors.items()}
        found: list[Builder] = []
        for node, start in starts.items():
            try:
                told = self._ray.get(start, timeout=START_LIMIT_S)
            except (self._ray.exceptions.RayError, TimeoutError) as error:
                self._forget(node, _first_line(error))
                continue
            if "error" in told:
                self._forget(node, f"{told['node']}: {told['error'].get('message', '')}")
                continue
            name = f"{told['node']}/{node[:8]}"
            found.append(Builder(name, node, self._actors[node], told["identity"], told["cann_version"]))
        if not found:
            reasons = "; ".join(sorted(set(self._errors.values()))) or "it has no node with a CPU"
            raise DaemonUnavailable(f"no node of the Ray cluster can build: {reasons}")
        counts = Counter(builder.identity for builder in found)
        chosen = min(counts, key=lambda identity: (-counts[identity], identity))
        if others := [builder.name for builder in found if builder.identity != chosen]:
            warn(
                "%s would make other keys than the rest (another toolchain, kaas or part), and build nothing",
                ", ".join(others),
            )
        return sorted((builder for builder in found if builder.identity == chosen), key=lambda b: b.name)

    def _placed(self, node: str) -> Any:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        strategy = strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        # No CPU of Ray's is set aside: compiles give way to whatever else runs on the node.
        return (
            self._ray.remote(NodeBuilder)
            .options(num_cpus=0, scheduling_strategy=strategy)
            .remote(self._config)
        )

    def _round(self, builders: Sequence[Builder], tasks: Sequence[Task]) -> Iterator[TaskEnd]:
        by_position = {task.position: task for task in tasks}
        streams: dict[Any, Builder] = {}
        for builder, part in zip(builders, self._parts(builders, tasks), strict=True):
            if part:
                warm = builder.actor.warm.options(num_returns="streaming")
                streams[warm.remote(_plain(part), self._label or "ray")] = builder
        while streams:
            ready, _ = self._ray.wait(list(streams), num_returns=1)
            for stream in ready:
                builder = streams[stream]
                try:
                    told = self._ray.get(next(stream))
                except StopIteration:
                    del streams[stream]
                    continue
                except self._ray.exceptions.RayError as error:
                    del streams[stream]
                    self._forget(builder.node, f"{builder.name} was lost: {_first_line(error)}")
                    continue
                if "error" in told:
                    warn("%s stopped: %s", builder.name, told["error"].get("message", ""))
                    continue
                yield TaskEnd(
                    task=by_position[told["position"]],
                    key=told["key"],
                    outcome=told["outcome"],
                    seconds=told["seconds"],
                    error=told["failure"],
                    where=builder.name,
                )

    def _parts(self, builders: Sequence[Builder], tasks: Sequence[Task]) -> list[list[Task]]:
        """Who does what: what a node holds already it only has to say so; the rest is split."""
        questions = [builder.actor.held.remote(_plain(tasks)) for builder in builders]
        parts: list[list[Task]] = [[] for _ in builders]
        left = {task.position: task for task in tasks}
        for part, question in zip(parts, questions, strict=True):
            try:
                held = self._ray.get(question, timeout=HELD_LIMIT_S)
            except (self._ray.exceptions.RayError, TimeoutError):
                continue  # whether it is lost shows when it is given work
            part += [left.pop(position) for position in held if position in left]
        rest = list(left.values())
        shares = split([task.entry for task in rest], len(builders), self._costs)
        for part, share in zip(parts, shares, strict=True):
            part += [rest[i] for i in share]
        return parts

    def _forget(self, node: str, reason: str) -> None:
        self._errors[node] = reason
        warn("a node does not build: %s", reason)
        self._ray.kill(self._actors.pop(node))  # a node that is still there gets another next time

    def _stop(self) -> None:
        stops = [actor.stop.remote() for actor in self._actors.values()]
        if stops:
            self._ray.wait(stops, num_returns=len(stops), timeout=_STOP_LIMIT_S)


def _plain(tasks: Sequence[Task]) -> list[PlainEntry]:
    return [(task.position, task.entry.spec.canonical(), task.entry.soc_name) for task in tasks]


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
