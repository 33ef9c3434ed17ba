"""A cold kernel over the plain socket: what a rank gets, what it may do wrong, what it is spared."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.daemon import DaemonProcess, until
from support.fake_toolkit import FakeToolkit

from kaas import GemmSpec
from kaas.client.daemon_link import DaemonLink
from kaas.proto.errors import DaemonUnavailable, DeadlineExceeded, InvalidSpec, StrictMiss
from kaas.proto.locations import lease_socket

RANK = """
import sys
from kaas import GemmSpec, get_kernel
handle = get_kernel(GemmSpec(m=64, n=int(sys.argv[1]), k=64), timeout=240)
print(handle.origin, "grpc" in sys.modules, "asyncio" in sys.modules)
"""


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> FakeToolkit:
    return FakeToolkit(tmp_path_factory.mktemp("toolkit"))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, toolkit: FakeToolkit) -> Iterator[DaemonProcess]:
    directory = tmp_path_factory.mktemp("plain")
    with DaemonProcess(directory, toolkit_home=str(toolkit.home), rest_address="off") as process:
        process.wait_ready()
        yield process


@pytest.fixture
def link(daemon: DaemonProcess) -> Iterator[DaemonLink]:
    link = DaemonLink(Path(daemon.socket))
    yield link
    link.close()


def say(daemon: DaemonProcess, line: bytes) -> bytes:
    """What the daemon answers before it hangs up, in order or not."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(lease_socket(Path(daemon.socket))))
        answer = b""
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(line)
            while part := connection.recv(1 << 16):
                answer += part
    return answer


def want(spec: object, **fields: object) -> bytes:
    return json.dumps({"want": 1, "spec": spec, **fields}).encode() + b"\n"


def answer(daemon: DaemonProcess, line: bytes) -> dict[str, Any]:
    found = json.loads(say(daemon, line))
    assert isinstance(found, dict)
    return found


def test_ranks_share_a_cold_compile_without_importing_grpc(daemon: DaemonProcess) -> None:
    environ = {**os.environ, "KAAS_SOCKET": daemon.socket, "KAAS_STORE": str(daemon.store)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, "96"], env=environ, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = [rank.communicate(timeout=240)[0].split() for rank in ranks]
    assert {words[0] for words in said} <= {"compiled", "joined", "store"}
    assert [words[0] for words in said].count("compiled") == 1
    assert {tuple(words[1:]) for words in said} == {("False", "False")}


def test_a_kernel_in_the_store_is_a_hit_and_its_file_is_named(
    daemon: DaemonProcess, link: DaemonLink
) -> None:
    spec = GemmSpec(m=64, n=128, k=64)
    made = link.get_kernel(spec.canonical(), timeout=240)
    assert made.outcome == 2
    found = answer(daemon, want(spec.to_record()))
    assert (found["outcome"], found["key"]) == ("hit", made.key)
    assert Path(found["path"]).is_file()


def test_the_daemons_refusals_reach_the_client_as_themselves(link: DaemonLink) -> None:
    with pytest.raises(InvalidSpec, match="nothing"):
        link.get_kernel(b'{"family":"nothing"}', timeout=60)
    with pytest.raises(StrictMiss):
        link.get_kernel(GemmSpec(m=64, n=176, k=64).canonical(), strict=True, timeout=60)


def test_a_deadline_says_how_far_the_kernel_was(link: DaemonLink, toolkit: FakeToolkit) -> None:
    toolkit.behaviour = "barrier"
    try:
        with pytest.raises(DeadlineExceeded, match="it is compiling") as late:
            link.get_kernel(GemmSpec(m=64, n=192, k=64).canonical(), timeout=2.0)
        assert late.value.details["state"] == "compiling"
    finally:
        toolkit.open_barrier()
        toolkit.behaviour = "compile"


@pytest.mark.parametrize(
    "line",
    [
        b'{"want": 2, "spec": {}}\n',
        b'{"want": 1}\n',
        b'{"want": 1, "spec": {}, "more": 1}\n',
        b'{"want": 1, "spec": {}, "priority": "king"}\n',
        b'{"want": 1, "spec": {\n',
        b'["want"]\n',
        b"\xff\n",
        b'{"want": 1, "spec": "' + b"x" * (65 << 10) + b'"}\n',
    ],
)
def test_a_line_that_is_no_question_ends_its_connection_only(daemon: DaemonProcess, line: bytes) -> None:
    assert say(daemon, line) == b""
    assert answer(daemon, want({"family": "nothing"}))["error"]["code"] == "unknown_family"


def test_a_connection_is_for_one_question(daemon: DaemonProcess) -> None:
    line = want(GemmSpec(m=64, n=208, k=64).to_record())
    assert say(daemon, line + line) == b""


def test_a_client_that_hangs_up_waits_no_more(daemon: DaemonProcess, toolkit: FakeToolkit) -> None:
    def cancelled() -> bool:
        return "CancelledError" in daemon.log_text()

    (toolkit.home / "go").unlink(missing_ok=True)
    toolkit.behaviour = "barrier"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(lease_socket(Path(daemon.socket))))
            connection.sendall(want(GemmSpec(m=64, n=224, k=64).to_record()))
            until(daemon.workers, what="a compile")
            assert not cancelled()
        until(cancelled, what="the end of the wait")
    finally:
        toolkit.open_barrier()
        toolkit.behaviour = "compile"


def test_a_client_that_has_nothing_more_to_say_is_answered(
    daemon: DaemonProcess, toolkit: FakeToolkit
) -> None:
    (toolkit.home / "go").unlink(missing_ok=True)
    toolkit.behaviour = "barrier"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(lease_socket(Path(daemon.socket))))
            connection.sendall(want(GemmSpec(m=64, n=240, k=64).to_record()))
            connection.shutdown(socket.SHUT_WR)
            until(daemon.workers, what="a compile")
            toolkit.open_barrier()
            with connection.makefile("rb") as reader:
                found = json.loads(reader.read())
        assert found["outcome"] == "compiled"
        assert Path(found["path"]).exists()
    finally:
        toolkit.open_barrier()
        toolkit.behaviour = "compile"


def test_a_client_that_says_nothing_more_and_then_hangs_up_waits_no_more(
    daemon: DaemonProcess, toolkit: FakeToolkit
) -> None:
    def cancelled() -> int:
        return daemon.log_text().count("CancelledError")

    (toolkit.home / "go").unlink(missing_ok=True)
    toolkit.behaviour = "barrier"
    before = cancelled()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(lease_socket(Path(daemon.socket))))
            connection.sendall(want(GemmSpec(m=64, n=256, k=64).to_record()))
            connection.shutdown(socket.SHUT_WR)
            until(daemon.workers, what="a compile")
            assert cancelled() == before
        until(lambda: cancelled() > before, what="the end of the wait")
    finally:
        toolkit.open_barrier()
        toolkit.behaviour = "compile"


def test_without_a_daemon_the_client_says_so_at_once(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnavailable, match="there is no socket"):
        DaemonLink(tmp_path / "none.sock").get_kernel(b"{}", timeout=60)
