"""What a client says on the lease socket, and that nothing which happens there reaches its caller."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kaas.client import lease_link as lease_link_module
from kaas.client.lease_link import LeaseLink, lease_link
from kaas.proto.locations import lease_socket

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


class Listener:
    """Stands where the daemon listens; nothing is read unless a test asks."""

    def __init__(self, path: Path, backlog: int = 8) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen(backlog)
        self.socket.settimeout(10)
        self.accepted: list[socket.socket] = []

    def accept(self) -> socket.socket:
        connection, _ = self.socket.accept()
        connection.settimeout(10)
        self.accepted.append(connection)
        return connection

    def close(self) -> None:
        for one in (*self.accepted, self.socket):
            one.close()
        self.path.unlink()


@pytest.fixture
def path() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="kaas-"))
    yield directory / "kaas.sock"
    shutil.rmtree(directory)


@pytest.fixture
def link(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseLink]:
    monkeypatch.setattr(lease_link_module, "PAUSE_S", 0.0)
    monkeypatch.setattr(lease_link_module, "BURST_S", -1.0)
    monkeypatch.setattr(lease_link_module, "RETRY_FIRST_S", 3600.0)
    link = LeaseLink(path)
    yield link
    link.close()


@pytest.fixture
def listener(path: Path) -> Iterator[Listener]:
    listener = Listener(lease_socket(path))
    yield listener
    listener.close()


def said(connection: socket.socket, lines: int) -> list[Any]:
    received = b""
    while received.count(b"\n") < lines:
        chunk = connection.recv(1 << 20)
        assert chunk, received
        received += chunk
    return [json.loads(line) for line in received.splitlines()]


def test_it_says_who_it_is_and_then_each_kernel_once(
    link: LeaseLink, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "47 \udcff")
    monkeypatch.setenv("RANK", "3")
    link.took(A, "store")
    link.took(A, "store")
    link.took(B, "compiled")
    assert said(listener.accept(), 3) == [
        {"lease": 1, "job": "47 ?", "rank": "3"},
        {"took": [[A, "store"]]},
        {"took": [[B, "compiled"]]},
    ]


def test_kernels_taken_while_nobody_listens_are_told_later(link: LeaseLink, path: Path) -> None:
    link.took(A, "store")
    link.took(B, "store")
    listener = Listener(lease_socket(path))
    link.took(C, "hit")
    assert said(listener.accept(), 2)[1:] == [{"took": [[A, "store"], [B, "store"], [C, "hit"]]}]
    listener.close()


def test_a_daemon_that_went_away_is_told_everything_when_it_is_back(link: LeaseLink, path: Path) -> None:
    first = Listener(lease_socket(path))
    link.took(A, "store")
    said(first.accept(), 2)
    first.close()
    second = Listener(lease_socket(path))
    link.took(B, "store")
    assert said(second.accept(), 3)[1:] == [{"held": [A]}, {"took": [[B, "store"]]}]
    second.close()


def test_a_pause_follows_a_failed_connect(path: Path) -> None:
    link = LeaseLink(path)
    link.took(A, "store")
    listener = Listener(lease_socket(path))
    listener.socket.setblocking(False)
    link.took(B, "store")
    with pytest.raises(BlockingIOError):
        listener.accept()
    link.close()
    listener.close()


def test_a_daemon_that_does_not_read_delays_nobody_and_is_told_what_it_missed(
    link: LeaseLink, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_link_module, "MAX_UNSENT_BYTES", 4096)
    keys = [f"{number:064x}" for number in range(9_000)]
    for key in keys:
        link.took(key, "store")  # much more than a socket's buffer holds; returns at once
    told: set[str] = set()
    listener.socket.setblocking(False)
    while True:
        try:
            connection = listener.accept()
        except BlockingIOError:
            break
        connection.setblocking(False)
        received = b""
        while True:
            try:
                chunk = connection.recv(1 << 20)
            except (BlockingIOError, ConnectionError):
                break
            if not chunk:
                break
            received += chunk
        for line in received.split(b"\n")[1:-1]:
            kernels = json.loads(line)
            told |= {key for key, _ in kernels.get("took", [])} | set(kernels.get("held", []))
    assert len(told) > 1000
    assert told <= set(keys)


def test_a_full_backlog_is_no_trouble(link: LeaseLink, path: Path) -> None:
    listener = Listener(lease_socket(path), backlog=0)
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for one in crowd:
        one.setblocking(False)
        one.connect_ex(str(lease_socket(path)))
    link.took(A, "store")
    for one in crowd:
        one.close()
    listener.close()


def test_there_is_a_bound(link: LeaseLink, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_link_module, "MAX_KERNELS", 2)
    for key in (A, B, C):
        link.took(key, "store")
    link.close()
    text = json.dumps(said(listener.accept(), 3))
    assert A in text
    assert B in text
    assert C not in text


@pytest.mark.parametrize("name", ["x" * 200 + ".sock", "there/is/none.sock"])
def test_a_socket_that_cannot_be_is_no_trouble(path: Path, name: str) -> None:
    link = LeaseLink(path.parent / name)
    link.took(A, "store")
    link.renew_in_child()


def test_a_process_has_one_link_to_a_daemon(path: Path) -> None:
    assert lease_link(path) is lease_link(Path(os.fspath(path)))
    assert lease_link(path) is not lease_link(path.with_name("other.sock"))


def test_kernels_taken_in_a_burst_are_told_together(path: Path, listener: Listener) -> None:
    link = LeaseLink(path)
    keys = [f"{number:064x}" for number in range(500)]
    for key in keys:
        link.took(key, "store")
    connection = listener.accept()
    received = b""
    while received.count(b'"store"') < len(keys) or not received.endswith(b"\n"):
        received += connection.recv(1 << 20)
    link.close()
    lines = [json.loads(line) for line in received.splitlines()]
    assert [taken for line in lines for taken in line.get("took", [])] == [[key, "store"] for key in keys]
    assert len(lines) < 50


def test_what_is_left_of_a_burst_is_told_at_the_end(
    path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_link_module, "BURST_S", 3600.0)
    link = LeaseLink(path)
    link.took(A, "store")
    link.took(B, "hit")
    link.took(C, "store")
    link.close()
    told = [{"took": [[A, "store"]]}, {"took": [[B, "hit"], [C, "store"]]}]
    assert said(listener.accept(), 3)[1:] == told


@pytest.fixture
def persistent(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseLink]:
    """A link that tries again soon by itself."""
    monkeypatch.setattr(lease_link_module, "PAUSE_S", 0.0)
    monkeypatch.setattr(lease_link_module, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(lease_link_module, "RETRY_LONGEST_S", 0.01)
    link = LeaseLink(path)
    yield link
    link.close()


def test_what_was_taken_while_nobody_listened_is_told_without_another_kernel(
    persistent: LeaseLink, path: Path
) -> None:
    persistent.took(A, "store")
    persistent.took(B, "hit")
    listener = Listener(lease_socket(path))
    assert said(listener.accept(), 2)[1:] == [{"took": [[A, "store"], [B, "hit"]]}]
    listener.close()


def test_what_a_full_socket_did_not_take_is_told_once_it_is_read(
    persistent: LeaseLink, listener: Listener
) -> None:
    persistent.took(A, "store")
    connection = listener.accept()
    keys = [A, *(f"{number:064x}" for number in range(9_000))]
    for key in keys:
        persistent.took(key, "store")  # much more than a socket's buffer holds
    received = b""
    while received.count(b'"store"') < len(keys) or not received.endswith(b"\n"):
        chunk = connection.recv(1 << 20)
        assert chunk
        received += chunk
    lines = [json.loads(line) for line in received.splitlines()[1:]]
    assert [taken for line in lines for taken in line["took"]] == [[key, "store"] for key in keys]


def test_a_descriptor_that_became_another_files_is_neither_written_nor_closed(
    link: LeaseLink, listener: Listener
) -> None:
    link.took(A, "store")
    first = listener.accept()
    said(first, 2)
    assert link._connection is not None
    number = link._connection.fileno()
    theirs, other_end = socket.socketpair()
    other_end.setblocking(False)
    os.dup2(theirs.fileno(), number)  # which closes the link's own
    link.took(B, "store")
    assert said(listener.accept(), 3)[1:] == [{"held": [A]}, {"took": [[B, "store"]]}]
    with pytest.raises(BlockingIOError):
        other_end.recv(1)
    assert os.fstat(number).st_ino == os.fstat(theirs.fileno()).st_ino
    os.close(number)
    theirs.close()
    other_end.close()
