"""How long a process held a kernel: until now if it lives, until its end if it ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from support.daemon import DaemonProcess
from support.fake_toolkit import FakeToolkit
from support.stored_kernels import store_gemm

HOUR = 3600.0
NO_PROCESS = 2**22 + 1
"""More than a process can have for a number."""


def used(key: str, session: str, when: float, **facts: Any) -> dict[str, Any]:
    user = {"pid": NO_PROCESS, "uid": 0, "user": "ada", "started": 1, "origin": "store"} | facts
    return {"when_unix": when, "event": "use", "key": key, "session": session, **user}


def ended(session: str, when: float, **facts: Any) -> dict[str, Any]:
    return {"when_unix": when, "event": "ended", "pid": NO_PROCESS, "session": session, "kernels": 1, **facts}


def test_an_ended_process_held_its_kernel_until_it_ended(tmp_path: Path) -> None:
    toolkit = FakeToolkit(tmp_path / "toolkit")
    daemon = DaemonProcess(tmp_path, toolkit_home=str(toolkit.home))
    with daemon:
        key = store_gemm(daemon.store, 64)
        daemon.stop()
        long_ago = time.time() - 72 * HOUR
        records = [
            used(key, "by session", long_ago, pid=NO_PROCESS + 1),
            ended("by session", long_ago + 3 * HOUR, pid=NO_PROCESS + 1),
            # Its first daemon died, so that only the end of its second connection was noticed.
            used(key, "by process", long_ago),
            ended("of a later daemon", long_ago + 5 * HOUR, started=1),
            ended("of somebody else", long_ago + 7 * HOUR, started=2),
            used(key, "unnoticed", long_ago, pid=NO_PROCESS + 2),
        ]
        audit = daemon.store / "audit" / "audit.jsonl"
        audit.parent.mkdir(exist_ok=True)
        with audit.open("ab") as file:
            file.writelines(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in records)
        daemon.start()
        with httpx.Client(base_url=daemon.rest_url) as http:
            users = http.get(f"/v1/kernels/{key}/users").json()["users"]
        assert {user["session"]: user["liveness"] for user in users} == dict.fromkeys(
            ("by session", "by process", "unnoticed"), "ended"
        )
        held = {
            user["session"]: (user["ended_unix"] or user["since_unix"]) - user["since_unix"] for user in users
        }
        assert held == {"by session": 3 * HOUR, "by process": 5 * HOUR, "unnoticed": 0.0}
        words = [sys.executable, "-m", "kaas.client.cli", "who", key, "--socket", daemon.socket]
        shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert [span in shown for span in ("3 h", "5 h", "?", "3 d", "72 h")] == [True] * 3 + [False] * 2
