"""The daemon killed with SIGKILL at random moments under load, and started again on the same store."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon import DaemonProcess, until

from kaas.cache.artifact import open_artifact

ASK = Path(__file__).parents[1] / "support" / "ask_daemon.py"
SEED = 950


def spec(number: int) -> str:
    """The ``number``-th of an endless row of different small kernels."""
    return json.dumps({"family": "gemm", "n": 64, "k": 16 * (number + 1)})


def ask(daemon: DaemonProcess, specs: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(ASK), daemon.socket, "120", *specs]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def answers(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    output, _ = process.communicate(timeout=240)
    return [json.loads(line) for line in output.splitlines()]


def stored(daemon: DaemonProcess) -> list[Path]:
    return sorted(daemon.store.glob("artifacts/*/*.kernel"))


def spec_of(path: Path) -> str:
    with open_artifact(path, path.name.partition(".")[0]) as artifact:
        return json.dumps(artifact.passport.spec)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path, rest_address="off") as process:
        yield process


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_kills_at_random_moments_never_damage_what_is_served(daemon: DaemonProcess, rounds: int) -> None:
    moments = random.Random(SEED)
    images: dict[str, str] = {}
    asked = interrupted = 0
    daemon.wait_ready()

    def check(replies: list[dict[str, Any]]) -> None:
        """What was answered is whole (the client verified it) and is what was served before."""
        for reply in replies:
            if reply["status"] == "OK":
                assert images.setdefault(reply["key"], reply["image"]) == reply["image"]

    for _ in range(rounds):
        if moments.random() < 0.7:
            daemon.wait_ready()  # else the kill meets a daemon that is still warming up
        fresh = [spec(number) for number in range(asked, asked + 4)]
        asked += 4
        load = [ask(daemon, [spec(moments.randrange(asked)), new]) for new in fresh]
        time.sleep(moments.uniform(0.0, 3.0))
        daemon.kill()
        survivors = stored(daemon)
        for process in load:
            replies = answers(process)
            interrupted += any(reply["status"] == "UNAVAILABLE" for reply in replies)
            check(replies)
        until(lambda: not daemon.children(), what="the end of the dead daemon's processes")

        daemon.start()
        # The new daemon's own probe of the store is there for a moment.
        until(lambda: not list((daemon.store / "staging").iterdir()), what="an empty staging folder")
        assert list((daemon.store / "quarantine").iterdir()) == []
        chosen = moments.sample(survivors, min(3, len(survivors)))
        hits = answers(ask(daemon, [spec_of(path) for path in chosen])) if chosen else []
        assert [(reply["outcome"], reply["file"]) for reply in hits] == [
            ("hit", path.name) for path in chosen
        ]
        check(hits)

    assert interrupted > 0
    daemon.wait_ready()
    specs = [spec(number) for number in range(min(asked, 12))]
    first, second = answers(ask(daemon, specs)), answers(ask(daemon, specs))
    check(first + second)
    assert [reply["status"] for reply in first] == ["OK"] * len(specs)
    assert [reply["outcome"] for reply in second] == ["hit"] * len(specs)
    assert len(stored(daemon)) >= len(specs)
