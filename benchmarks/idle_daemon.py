"""Row 10: a daemon to which nobody talks: resident memory, CPU over a minute, time until it answers.

It answers while its compile workers still warm up; they are processes of their own and are told separately.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.effort import Effort
from benchmarks.node import SOC, child_environment, running_node
from benchmarks.outcome import Check, Outcome, Row, Series
from benchmarks.process_costs import own_cpu_s, resident_bytes

MB = 1e6


def measure(effort: Effort) -> Outcome:
    """Several starts until the first answer, then one daemon left alone."""
    series = {
        "10 start until it answers": Series(),
        "10 daemon's resident memory": Series(unit="MB"),
        "10 compile zygote's resident memory": Series(unit="MB"),
        "10 CPU of daemon and zygote while idle": Series(unit="%"),
        "10 CPU of the daemon alone": Series(unit="%"),
    }
    for _ in range(effort.times(7, 2)):
        series["10 start until it answers"].samples.append(_start_seconds())
    with running_node() as node:
        time.sleep(5)
        daemon = psutil.Process(node.process.pid)
        everybody = [daemon, *daemon.children(recursive=True)]
        window = 60.0 if effort.scale >= 0.5 else 5.0
        for _ in range(effort.times(1, 1)):
            before = {one.pid: own_cpu_s(one.pid) for one in everybody}
            begin = time.monotonic()
            time.sleep(window)
            used = {pid: own_cpu_s(pid) - cpu for pid, cpu in before.items()}
            percent = 100 / (time.monotonic() - begin)
            series["10 CPU of daemon and zygote while idle"].samples.append(percent * sum(used.values()))
            series["10 CPU of the daemon alone"].samples.append(percent * used[daemon.pid])
            series["10 daemon's resident memory"].samples.append(resident_bytes(daemon.pid) / MB)
            series["10 compile zygote's resident memory"].samples.append(
                sum(resident_bytes(one.pid) for one in everybody[1:]) / MB
            )
    row = Row(
        number="10",
        measured="daemon, idle",
        against="nothing",
        checks=(
            Check(
                what="resident memory of the daemon",
                value=series["10 daemon's resident memory"].median,
                unit="MB",
                direction="<=",
                target=90 * 1.048576,
            ),
            Check(
                what="CPU (0 % is less than one in a thousand)",
                value=series["10 CPU of daemon and zygote while idle"].median,
                unit="%",
                direction="<=",
                target=0.1,
            ),
            Check(
                what="start until it answers",
                value=series["10 start until it answers"].median,
                unit="s",
                direction="<=",
                target=1.0,
            ),
        ),
    )
    return Outcome(rows=[row], series=series)


def _start_seconds() -> float:
    """From the start of the process until a client got its first answer, polled from a connected stub."""
    import kaas.proto.v1.kernel_service_pb2_grpc  # the client's own imports are no part of it
    from kaas.client.daemon_link import DaemonLink
    from kaas.proto.errors import DaemonUnavailable

    assert kaas.proto.v1.kernel_service_pb2_grpc
    with tempfile.TemporaryDirectory(prefix="kaas-bench-") as name:
        directory = Path(name)
        environ = child_environment(
            KAAS_SOCKET=str(directory / "kaas.sock"),
            KAAS_STORE=str(directory / "store"),
            KAAS_REST_ADDRESS="off",
            KAAS_SOC_NAME=SOC,
        )
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "kaas.server"],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not (directory / "kaas.sock").exists() and time.monotonic() - begin < 60:
                time.sleep(0.002)
            link = DaemonLink(directory / "kaas.sock")
            while time.monotonic() - begin < 60:
                try:
                    link.environment()
                except DaemonUnavailable:
                    time.sleep(0.005)
                else:
                    return time.monotonic() - begin
            raise RuntimeError("the daemon did not answer within 60 s")
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, 9)
                process.wait()
