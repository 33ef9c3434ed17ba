"""A store that is checked, with a daemon and without, and what doctor says of one that is in trouble."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.daemon import DaemonProcess, until
from support.fake_toolkit import FakeToolkit
from support.small_disk import fill, small_disk
from support.stored_kernels import store_gemm

from kaas.cache.artifact import open_artifact
from kaas.cache.layout import StoreLayout
from kaas.client.daemon_link import DaemonLink

WIDTHS = (16, 32, 48, 64)


class Template:
    """A store as a daemon left it: four kernels, all of them in the index."""

    def __init__(self, directory: Path) -> None:
        self.toolkit = FakeToolkit(directory / "toolkit")
        with DaemonProcess(directory, toolkit_home=str(self.toolkit.home), rest_address="off") as daemon:
            self.store = daemon.store
            self.keys = [store_gemm(self.store, n) for n in WIDTHS]
            daemon.stop()
            daemon.start()
            link = DaemonLink(Path(daemon.socket))
            until(lambda: link.list_kernels(page_size=1).total == len(WIDTHS), what="the index")
            link.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("template"))


def rot(path: Path) -> None:
    """Another bit in the middle, and nothing in the file's times that says so."""
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


class Node:
    """A daemon that is not started yet, on a copy of a store with four kernels."""

    def __init__(
        self, template: Template, directory: Path, store: Path | None = None, **options: str
    ) -> None:
        store = store or directory / "store"
        shutil.copytree(template.store, store)
        store.chmod(0o755)
        self.keys = template.keys
        self.layout = StoreLayout(store)
        self.daemon = DaemonProcess(
            directory, toolkit_home=str(template.toolkit.home), store=str(store), **options
        )

    def path(self, number: int) -> Path:
        return self.layout.artifact_path(self.keys[number])

    def kaas(self, *words: str, status: int = 0) -> Any:
        """A command's JSON."""
        run = self.run(*words, "--json")
        assert run.returncode == status, run.stdout + run.stderr
        return json.loads(run.stdout)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "KAAS_STORE": str(self.daemon.store), "KAAS_SOCKET": self.daemon.socket}
        run = subprocess.run(
            [sys.executable, "-m", "kaas.client.cli", *words],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in run.stderr
        return run

    def diagnosis(self, subject: str) -> tuple[str, str, str]:
        """The worst that doctor says of a subject: status, message and advice."""
        run = self.run("doctor", "--json")
        found = [one for one in json.loads(run.stdout) if one["subject"] == subject]
        worst = max(found, key=lambda one: ("ok", "warn", "fail").index(one["status"]))
        return worst["status"], worst["message"], worst["advice"]

    def close(self) -> None:
        self.daemon.stop()
        self.daemon.discard()


@pytest.fixture
def node(template: Template, tmp_path: Path) -> Iterator[Node]:
    node = Node(template, tmp_path, scrub_bytes_per_s="0")
    yield node
    node.close()


def test_a_running_daemon_checks_all_it_has_and_puts_damage_away(node: Node) -> None:
    node.daemon.start()
    rot(node.path(1))
    with httpx.Client(base_url=node.daemon.rest_url) as http:
        assert http.get("/v1/scrub").json()["passes"] == 0
        found = node.kaas("fsck", "--online")
        assert (found["checked"], found["damaged"]) == (4, 1)
        assert found["damaged_keys"] == [node.keys[1]]
        assert not node.path(1).exists()
        until(lambda: http.get("/v1/kernels").json()["total"] == 3, what="the list without it")
        assert http.get("/v1/usage").json()["scrub"] == {"passes": 1, "checked": 4, "damaged": 1}
        audit = http.get("/v1/audit", params={"event": "quarantined"}).json()["records"]
        assert [record["key"] for record in audit] == [node.keys[1]]
        assert node.kaas("fsck", "--online")["damaged"] == 0
        asked = http.post("/v1/scrub").json()["asked_for"]
        until(lambda: http.get("/v1/scrub").json()["passes"] >= asked, what="a pass by REST")


def test_a_link_in_place_of_a_directory_is_no_part_of_the_store_and_is_named(
    node: Node, tmp_path: Path
) -> None:
    aside = tmp_path / "aside"
    linked, looped = node.path(0).parent, node.layout.artifacts / "zz"
    linked.rename(aside)
    linked.symlink_to(aside)
    looped.symlink_to(looped)
    behind = aside / node.path(0).name
    rot(behind)
    content = behind.read_bytes()
    looked = node.kaas("fsck", "--dry-run", status=1)
    assert {(one["kind"], one["path"]) for one in looked["problems"]} == {
        ("foreign", str(linked)),
        ("foreign", str(looped)),
    }
    assert looked["checked"] == 3
    node.daemon.start()
    link = DaemonLink(Path(node.daemon.socket))
    until(lambda: link.list_kernels(page_size=1).total == 3, what="the index without it")
    link.close()
    rot(node.path(1))
    found = node.kaas("fsck", "--online", status=1)
    assert (found["checked"], found["damaged_keys"]) == (3, [node.keys[1]])
    assert sorted(one["path"] for one in found["skipped"]) == sorted(map(str, (linked, looped)))
    assert all(one["reason"] for one in found["skipped"])
    told = node.run("fsck", "--online")
    assert f"skipped: {linked}" in told.stdout
    assert behind.read_bytes() == content
    linked.unlink()
    looped.unlink()
    assert node.kaas("fsck", "--online")["skipped"] == []


def test_a_store_that_cannot_be_listed_is_told_at_once_and_checked_when_it_can_be(node: Node) -> None:
    node.daemon.start()
    artifacts, aside = node.layout.artifacts, node.layout.root / "aside"
    artifacts.rename(aside)
    artifacts.symlink_to(artifacts)
    run = node.run("fsck", "--online")
    assert run.returncode == 6, run.stdout + run.stderr
    assert str(artifacts) in run.stderr
    with httpx.Client(base_url=node.daemon.rest_url) as http:
        state = http.get("/v1/scrub").json()
        assert (state["passes"], state["failures"], state["asked_for"]) == (0, 1, 1)
        assert str(artifacts) in state["trouble"]
        artifacts.unlink()
        aside.rename(artifacts)
        found = node.kaas("fsck", "--online")
        assert (found["checked"], found["trouble"]) == (4, "")


def test_a_daemon_that_gets_nowhere_is_not_waited_for(node: Node) -> None:
    node.daemon.start()
    os.kill(node.daemon.pid, signal.SIGSTOP)
    try:
        run = node.run("fsck", "--online", "--timeout", "0.5")
    finally:
        os.kill(node.daemon.pid, signal.SIGCONT)
    assert run.returncode == 5, run.stdout + run.stderr


def test_damage_is_found_without_anybody_asking(template: Template, tmp_path: Path) -> None:
    node = Node(template, tmp_path, scrub_bytes_per_s="1GiB", scrub_period_s="1")
    try:
        node.daemon.start()
        rot(node.path(2))
        until(lambda: not node.path(2).exists(), what="the periodic check")
        assert all(node.path(number).exists() for number in (0, 1, 3))
        until(lambda: node.kaas("usage")["scrub"]["passes"] >= 2, what="another pass")
    finally:
        node.close()


def test_without_a_daemon_everything_is_put_right(node: Node) -> None:
    node.daemon.start()
    refused = node.run("fsck")
    assert refused.returncode == 6
    assert "in use by" in refused.stderr
    assert refused.stderr.count("\n") <= 2
    node.daemon.stop()
    assert node.kaas("fsck")["clean"]

    rot(node.path(0))
    node.path(1).chmod(0o666)
    shard = node.path(2).parent
    shard.chmod(0o777)
    foreign = shard / "notes.txt"
    foreign.write_text("mine")
    (node.layout.staging / "half.1.2").write_bytes(b"half")
    database = node.layout.index / "cache.db"
    database.write_bytes(b"no database" + database.read_bytes()[11:])
    before = {path: path.read_bytes() for path in node.layout.root.rglob("*") if path.is_file()}

    looked = node.kaas("fsck", "--dry-run", status=1)
    assert {path: path.read_bytes() for path in before} == before
    assert {one["kind"] for one in looked["problems"]} == {"damaged", "permissions", "foreign", "left over"}
    done = node.kaas("fsck", status=1)
    kinds = {one["kind"] for one in done["problems"] if one["put_right"]}
    assert kinds == {"damaged", "permissions", "index", "left over"}
    assert [one["path"] for one in done["problems"] if not one["put_right"]] == [str(foreign)]
    assert done["checked"] == 4
    foreign.unlink()
    again = node.run("fsck")
    assert again.returncode == 0, again.stdout
    assert "3 artifacts" in again.stdout
    assert "no problems" in again.stdout
    node.daemon.start()
    link = DaemonLink(Path(node.daemon.socket))
    until(lambda: link.list_kernels(page_size=1).total == 3, what="the new index")
    for number in (1, 2, 3):
        open_artifact(node.path(number), node.keys[number]).close()
    link.close()


def lose_the_index(node: Node) -> None:
    shutil.rmtree(node.layout.index)


def ruin_the_index(node: Node) -> None:
    (node.layout.index / "cache.db").write_bytes(b"x" * 8192)


def lose_artifacts(node: Node) -> None:
    for number in (0, 3):
        node.path(number).unlink()


def lose_all_artifacts(node: Node) -> None:
    shutil.rmtree(node.layout.artifacts)


def open_up(node: Node) -> None:
    node.path(0).parent.chmod(0o777)


def close_up(node: Node) -> None:
    node.path(0).chmod(0o600)


@pytest.mark.parametrize(
    ("trouble", "subject", "status", "message", "advice"),
    [
        (lose_the_index, "index", "warn", "is lost", "start the daemon anew"),
        (ruin_the_index, "index", "warn", "cannot be read", "start the daemon anew"),
        (lose_artifacts, "artifacts", "warn", "2 of 4 indexed artifacts are lost", "prewarm"),
        (lose_all_artifacts, "artifacts", "fail", "is lost", "start the daemon anew"),
        (open_up, "store permissions", "fail", "mode 0777, should be 0755", "chmod 0755"),
        (close_up, "store permissions", "fail", "mode 0600, should be 0644", "chmod 0644"),
    ],
)
def test_doctor_names_the_trouble_and_its_cure(
    node: Node, trouble: Callable[[Node], None], subject: str, status: str, message: str, advice: str
) -> None:
    trouble(node)
    said = node.diagnosis(subject)
    assert said[0] == status
    assert message in said[1]
    assert advice in said[2]
    assert node.run("fsck").returncode == 0


def test_the_cure_for_what_is_lost_cures(node: Node) -> None:
    lose_artifacts(node)
    lose_the_index(node)
    assert node.diagnosis("index")[0] == "warn"
    node.daemon.start()
    link = DaemonLink(Path(node.daemon.socket))
    until(lambda: link.list_kernels(page_size=1).total == 2, what="the index")
    link.close()
    node.daemon.stop()
    assert node.diagnosis("artifacts") == ("ok", "2 stored, 2 indexed", "")


def test_doctor_names_a_full_disk(template: Template, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        node = Node(template, tmp_path / "node", disk / "store")
        filler = fill(disk)
        status, message, advice = node.diagnosis("store space")
        assert status == "fail"
        assert "is full" in message
        assert "free some space" in advice
        filler.unlink()
        assert node.diagnosis("store space")[0] != "fail"
        node.close()


def test_the_index_is_only_read_by_doctor(node: Node) -> None:
    files = {path.name: path.read_bytes() for path in node.layout.index.iterdir()}
    assert node.diagnosis("artifacts") == ("ok", "4 stored, 4 indexed", "")
    assert {path.name: path.read_bytes() for path in node.layout.index.iterdir()} == files


def test_what_a_daemon_has_not_written_yet_is_no_trouble(node: Node) -> None:
    node.daemon.start()
    node.kaas("quarantine", node.keys[0], "--reason", "wrong")
    assert node.diagnosis("artifacts") == ("ok", "3 stored, 3 indexed", "")


def test_a_kernel_that_no_list_has_is_told_with_the_cure(node: Node) -> None:
    node.daemon.start()
    link = DaemonLink(Path(node.daemon.socket))
    until(lambda: link.list_kernels(page_size=1).total == 4, what="the index")
    store_gemm(node.layout.root, 80)
    told = node.diagnosis("artifacts")
    assert told[:2] == ("warn", "5 stored, 4 indexed: lists lack 1")
    assert "start the daemon anew" in told[2]
    node.path(0).unlink()
    node.path(1).unlink()
    told = node.diagnosis("artifacts")
    assert told[:2] == ("warn", "1 of 4 indexed artifacts are lost")
    link.close()
    node.daemon.stop()
    store_gemm(node.layout.root, 96)
    assert node.diagnosis("artifacts")[0] == "warn"
    node.daemon.start()
    assert node.diagnosis("artifacts") == ("ok", "4 stored, 4 indexed", "")
    node.daemon.stop()
    store_gemm(node.layout.root, 112)
    told = node.diagnosis("artifacts")
    assert told[:2] == ("warn", "5 stored, 4 indexed: lists lack 1")
    assert "start the daemon" in told[2]


def test_a_directory_that_is_no_store_is_left_alone(node: Node, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "staging").mkdir(parents=True)
    precious = other / "staging" / "precious"
    precious.write_text("mine")
    other.chmod(0o1777)
    for words in ((), ("--dry-run",)):
        run = node.run("fsck", "--store", str(other), *words)
        assert run.returncode == 6
        assert "is no store" in run.stderr
    assert precious.read_text() == "mine"
    assert other.stat().st_mode & 0o7777 == 0o1777
    assert sorted(path.name for path in other.iterdir()) == ["staging"]


def test_an_online_check_cannot_be_dry(node: Node) -> None:
    run = node.run("fsck", "--online", "--dry-run")
    assert run.returncode == 2
    assert "never dry" in run.stderr
