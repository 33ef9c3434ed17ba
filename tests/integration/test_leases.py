"""Who holds which kernel: live processes are seen, their end is noticed, whatever they do to the socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon import DaemonProcess, until
from support.fake_toolkit import FakeToolkit
from support.stored_kernels import store_gemm

from kaas import GemmSpec
from kaas.client.daemon_link import DaemonLink
from kaas.proto.locations import lease_socket

RANK = Path(__file__).parents[1] / "support" / "hold_kernels.py"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    directory = tmp_path_factory.mktemp("leases")
    toolkit = FakeToolkit(directory / "toolkit")
    with DaemonProcess(directory, toolkit_home=str(toolkit.home), rest_address="off") as process:
        yield process


@pytest.fixture
def link(daemon: DaemonProcess) -> Iterator[DaemonLink]:
    link = DaemonLink(Path(daemon.socket))
    yield link
    link.close()


class Rank:
    """A client process that holds kernels until it is let go or killed."""

    def __init__(self, daemon: DaemonProcess, *arguments: object, **environ: str) -> None:
        environment = {
            **os.environ,
            "KAAS_SOCKET": daemon.socket,
            "KAAS_STORE": str(daemon.store),
            **environ,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(RANK), *map(str, arguments)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.keys: list[str] = []
        self.child = 0
        self._listen()

    def also_get(self, n: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        self._listen()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        word, pid, child, *keys = self.process.stdout.readline().split()
        assert (word, int(pid)) == ("holding", self.process.pid)
        self.child = int(child)
        self.keys += keys

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> None:
        self.process.communicate(timeout=30)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.end()


def holders(link: DaemonLink, key: str) -> set[int]:
    return {lease.pid for lease in link.list_leases(key).leases}


def kaas(daemon: DaemonProcess, *words: str) -> Any:
    command = [sys.executable, "-m", "kaas.client.cli", *words, "--socket", daemon.socket, "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def test_a_store_hit_shows_as_a_lease_with_user_job_and_rank(daemon: DaemonProcess, link: DaemonLink) -> None:
    key = store_gemm(daemon.store, 64)
    with Rank(daemon, 64, SLURM_JOB_ID="4711", RANK="3") as rank:
        lease = until(lambda: list(link.list_leases(key).leases), what="a lease")[0]
        assert (lease.pid, lease.uid, lease.job, lease.rank) == (rank.pid, os.getuid(), "4711", "3")
        assert rank.keys == [key]
        rank.end()
    until(lambda: not holders(link, key), what="the end of the lease")


def test_a_killed_holder_is_noticed(daemon: DaemonProcess, link: DaemonLink) -> None:
    key = store_gemm(daemon.store, 80)
    with Rank(daemon, 80) as doomed, Rank(daemon, 80) as other:
        until(lambda: holders(link, key) == {doomed.pid, other.pid}, what="two leases")
        doomed.process.send_signal(signal.SIGKILL)
        until(lambda: holders(link, key) == {other.pid}, what="the end of one lease")


def test_a_forked_child_holds_on_its_own(daemon: DaemonProcess, link: DaemonLink) -> None:
    key = store_gemm(daemon.store, 96)
    with Rank(daemon, "fork", 96) as parent:
        until(lambda: holders(link, key) == {parent.pid, parent.child}, what="leases of both")
        os.kill(parent.pid, signal.SIGKILL)
        until(lambda: holders(link, key) == {parent.child}, what="the end of the parent's lease")
        parent.end()  # which ends the child's input
    until(lambda: not holders(link, key), what="the end of the child's lease")


def test_after_a_restart_a_client_tells_everything_anew_with_its_next_kernel(tmp_path: Path) -> None:
    toolkit = FakeToolkit(tmp_path / "toolkit")
    daemon = DaemonProcess(tmp_path, toolkit_home=str(toolkit.home), rest_address="off")
    try:
        daemon.start()
        first = store_gemm(daemon.store, 64)
        with Rank(daemon, 64) as rank:
            link = DaemonLink(Path(daemon.socket))
            until(lambda: holders(link, first) == {rank.pid}, what="a lease")
            daemon.kill()
            daemon.start()
            second = store_gemm(daemon.store, 80)
            rank.also_get(80)
            for key in (first, second):
                until(lambda key=key: holders(link, key) == {rank.pid}, what="a lease told anew")
            link.close()
    finally:
        daemon.stop()
        daemon.discard()


def test_a_restarted_daemon_does_not_evict_what_a_live_process_took_before(tmp_path: Path) -> None:
    toolkit = FakeToolkit(tmp_path / "toolkit")
    daemon = DaemonProcess(tmp_path, toolkit_home=str(toolkit.home), rest_address="off")
    now = time.time()
    try:
        daemon.start()
        held = store_gemm(daemon.store, 64, created_unix=now - 9 * 86_400)  # worth least of the three
        for n in (80, 96):
            store_gemm(daemon.store, n, created_unix=now - 86_400)
        with Rank(daemon, 64):
            audit = daemon.store / "audit" / "audit.jsonl"
            until(lambda: audit.exists() and held in audit.read_text(), what="the use on record")
            daemon.kill()
            daemon.options["store_soft_files"] = "1"
            daemon.start()
            link = DaemonLink(Path(daemon.socket))
            until(lambda: link.usage()["evicted"] == 2, what="two evictions")
            assert [path.stem for path in daemon.store.glob("artifacts/*/*.kernel")] == [held]
            link.close()
    finally:
        daemon.stop()
        daemon.discard()


def test_a_store_hit_counts_as_use_when_something_must_go(tmp_path: Path) -> None:
    toolkit = FakeToolkit(tmp_path / "toolkit")
    daemon = DaemonProcess(tmp_path, toolkit_home=str(toolkit.home), rest_address="off")
    now = time.time()
    try:
        daemon.start()
        used = store_gemm(daemon.store, 64, created_unix=now - 9 * 86_400)  # worth least, but for its use
        unused = store_gemm(daemon.store, 80, created_unix=now - 86_400)
        daemon.stop()
        daemon.options["store_soft_files"] = "2"
        daemon.start()
        daemon.wait_ready()
        link = DaemonLink(Path(daemon.socket))
        until(lambda: link.list_kernels().total == 2, what="an index of both")
        with Rank(daemon, 64) as rank:  # which asks the store, not the daemon
            until(lambda: holders(link, used) == {rank.pid}, what="a lease")
            rank.end()
        until(lambda: not holders(link, used), what="the end of the lease")
        hits = {kernel.key: kernel.hits for kernel in link.list_kernels().kernels}
        assert hits == {used: 1, unused: 0}

        made = link.get_kernel(GemmSpec(n=96, k=64).canonical(), timeout=240).key
        until(lambda: link.usage()["evicted"] >= 1, what="an eviction")
        assert {path.stem for path in daemon.store.glob("artifacts/*/*.kernel")} == {used, made}
        link.close()
    finally:
        daemon.stop()
        daemon.discard()


def test_without_a_daemon_kernels_are_found_all_the_same(tmp_path: Path) -> None:
    toolkit = FakeToolkit(tmp_path / "toolkit")
    with DaemonProcess(tmp_path, toolkit_home=str(toolkit.home), rest_address="off") as daemon:
        key = store_gemm(daemon.store, 64)
        daemon.stop()
        with Rank(daemon, 64) as rank:
            assert rank.keys == [key]
            rank.end()
            assert rank.process.returncode == 0


HELLO = b'{"lease":1,"job":"j","rank":"0"}\n'


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\xff\xfe\n",
        b'{"lease":2}\n',
        b'{"lease":1,"pid":1}\n',
        b'{"took":[]}\n',
        HELLO + b"[]\n",
        HELLO + b'{"took":[["../../etc/passwd","store"]]}\n',
        HELLO + b'{"took":[["' + b"a" * 64 + b'","stolen"]]}\n',
        HELLO + b'{"held":["' + b"A" * 64 + b'"]}\n',
        HELLO + b"[" * 50_000 + b"\n",
        HELLO + b"x" * 70_000,
    ],
)
def test_words_that_are_none_end_their_own_connection_only(
    daemon: DaemonProcess, link: DaemonLink, words: bytes
) -> None:
    key = store_gemm(daemon.store, 112)
    with Rank(daemon, 112) as rank, socket.socket(socket.AF_UNIX) as intruder:
        intruder.settimeout(30)
        intruder.connect(str(lease_socket(Path(daemon.socket))))
        try:
            intruder.sendall(words)
            assert intruder.recv(1) == b""
        except ConnectionError:
            pass
        until(lambda: holders(link, key) == {rank.pid}, what="the other's lease")
    assert "incident" not in daemon.log_text()
    assert "Traceback" not in daemon.log_text()


def test_one_process_cannot_take_all_connections(daemon: DaemonProcess, link: DaemonLink) -> None:
    key = store_gemm(daemon.store, 128)
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(40)]
    try:
        for one in crowd:
            one.settimeout(30)
            one.connect(str(lease_socket(Path(daemon.socket))))
        ended = 0
        for one in crowd[8:]:
            try:
                ended += one.recv(1) == b""
            except ConnectionError:
                ended += 1
        assert ended == 32
        with Rank(daemon, 128) as rank:
            until(lambda: holders(link, key) == {rank.pid}, what="another's lease")
    finally:
        for one in crowd:
            one.close()


def test_a_process_with_many_connections_gets_its_kernels_all_the_same(
    daemon: DaemonProcess, link: DaemonLink, caplog: pytest.LogCaptureFixture
) -> None:
    key = store_gemm(daemon.store, 136)
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(8)]
    try:
        for one in crowd:
            one.connect(str(lease_socket(Path(daemon.socket))))
        assert link.get_kernel(GemmSpec(n=136, k=64).canonical(), timeout=60).key == key
    finally:
        for one in crowd:
            one.close()
    assert caplog.records == []


def test_what_is_taken_while_no_daemon_runs_is_leased_once_there_is_one(tmp_path: Path) -> None:
    toolkit = FakeToolkit(tmp_path / "toolkit")
    with DaemonProcess(tmp_path, toolkit_home=str(toolkit.home), rest_address="off") as daemon:
        keys = [store_gemm(daemon.store, n) for n in (64, 80)]
        daemon.stop()
        with Rank(daemon, 64, 80) as rank:
            daemon.start()
            link = DaemonLink(Path(daemon.socket))
            for key in keys:
                until(lambda key=key: holders(link, key) == {rank.pid}, what="a lease")
            link.close()


def test_what_is_taken_while_the_daemon_stands_still_is_leased_once_it_goes_on(
    daemon: DaemonProcess, link: DaemonLink
) -> None:
    every = range(16, 16 + 4 * 400, 4)  # more than the daemon's socket holds unread
    keys = [store_gemm(daemon.store, n, 4096) for n in every]
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        rank = Rank(daemon, "k=4096", *every)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    with rank:
        for key in (keys[0], keys[-1]):
            until(lambda key=key: holders(link, key) == {rank.pid}, what="a lease")


def test_who_names_live_and_ended_users(daemon: DaemonProcess, link: DaemonLink) -> None:
    key = store_gemm(daemon.store, 144)
    with Rank(daemon, 144, SLURM_JOB_ID="old") as ended:
        until(lambda: holders(link, key), what="a lease")
        ended.end()
    with Rank(daemon, 144, SLURM_JOB_ID="new", RANK="7") as alive:
        until(lambda: holders(link, key) == {alive.pid}, what="the other's lease")
        users = kaas(daemon, "who", key[:12])["users"]
    assert [(user["pid"], user["job"], user["rank"], user["liveness"]) for user in users] == [
        (alive.pid, "new", "7", "alive"),
        (ended.pid, "old", "", "ended"),
    ]


def test_a_quarantined_kernel_is_missed_by_everybody_and_its_holders_are_named(
    daemon: DaemonProcess, link: DaemonLink
) -> None:
    key = store_gemm(daemon.store, 160)
    with Rank(daemon, 160) as rank:
        until(lambda: holders(link, key), what="a lease")
        answer = kaas(daemon, "quarantine", key, "--reason", "wrong sums")
        assert [user["pid"] for user in answer["users"]] == [rank.pid]
        assert (daemon.store / "quarantine" / answer["file"]).exists()
        late = subprocess.run(
            [sys.executable, str(RANK), "160"],
            env={**os.environ, "KAAS_SOCKET": daemon.socket, "KAAS_STORE": str(daemon.store)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "StrictMiss" in late.stderr
        assert [user["pid"] for user in kaas(daemon, "who", key)["users"]] == [rank.pid]
        events = [record["event"] for record in kaas(daemon, "audit", key)]
        # The late one asked the daemon, whose memory might have held it.
        assert events == ["request", "quarantined", "use"]
