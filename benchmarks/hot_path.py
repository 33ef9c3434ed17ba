"""get_kernel when the kernel exists: memo, store and daemon, against a raw Unix-socket echo.

All four are called from one process, interleaved in rounds, so that they see the same machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from node import running_node
from raw_echo import echo
from statistics_of import human_seconds, summary


def _time_each(call: Callable[[], object], count: int) -> list[float]:
    samples = []
    clock = time.perf_counter_ns
    for _ in range(count):
        start = clock()
        call()
        samples.append((clock() - start) * 1e-9)
    return samples


def _client_process(rounds: int) -> dict[str, Any]:
    """Runs in the rank's process, with the node's environment already set."""
    from kaas import GemmSpec, get_kernel
    from kaas.client import api
    from kaas.client.daemon_link import DaemonLink
    from kaas.proto.locations import default_socket

    spec = GemmSpec(n=1024, k=1024, m=1024)
    get_kernel(spec)
    link = DaemonLink(default_socket())

    def from_store() -> None:
        api.forget()
        get_kernel(spec)

    def from_daemon() -> None:
        link.get_kernel(spec.canonical())

    samples: dict[str, list[float]] = {"memo": [], "store": [], "daemon": [], "echo": []}
    with echo() as round_trip:
        for warm_up in (from_store, from_daemon, round_trip):
            _time_each(warm_up, 50)
        for _ in range(rounds):
            api.forget()
            get_kernel(spec)
            samples["memo"] += _time_each(lambda: get_kernel(spec), 2000)
            samples["store"] += _time_each(from_store, 100)
            samples["daemon"] += _time_each(from_daemon, 50)
            samples["echo"] += _time_each(round_trip, 200)
    return {name: summary(values) for name, values in samples.items()}


def measure(rounds: int = 20) -> dict[str, Any]:
    """Start a node, then measure from a fresh client process."""
    with running_node(soc_name="Ascend950PR_9579") as node:
        finished = subprocess.run(
            [sys.executable, __file__, str(rounds)],
            env=node.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if finished.returncode:
            raise RuntimeError(finished.stderr)
    result: dict[str, Any] = json.loads(finished.stdout)
    for name in ("memo", "store", "daemon"):
        result[f"{name}_to_echo"] = {
            share: result[name][share] / result["echo"][share] for share in ("median", "p99")
        }
    return result


def rows(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Table rows: what, kaas, against, ratio."""

    def cell(name: str) -> str:
        return f"p50 {human_seconds(result[name]['median'])}, p99 {human_seconds(result[name]['p99'])}"

    titles = {
        "memo": "`get_kernel`, same spec again in the process (memo)",
        "store": "`get_kernel`, first time in the process, artifact in the store (read, verify, handle)",
        "daemon": "the same through the daemon (gRPC)",
    }
    return [
        (
            title,
            cell(name),
            "raw echo: " + cell("echo"),
            "{median:.3g} x (p50), {p99:.3g} x (p99)".format(**result[f"{name}_to_echo"]),
        )
        for name, title in titles.items()
    ]


if __name__ == "__main__":
    print(json.dumps(_client_process(int(sys.argv[1]))))
