"""Taking a Unix socket over: the dead are replaced, the living never."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kaas.proto.errors import InvalidConfig, PermissionDenied
from kaas.server import listeners
from kaas.server.listeners import SocketAccess

ACCESS = SocketAccess(mode=0o660)


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kaas-") as name:
        yield Path(name)


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(str(path)) == 0


def test_a_socket_has_its_mode_and_a_directory_of_its_own(directory: Path) -> None:
    path = directory / "new" / "kaas.sock"
    with listeners.bind_unix(path, ACCESS, field="socket"):
        assert connects(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert [entry.name for entry in path.parent.iterdir()] == ["kaas.sock"]


def test_a_dead_socket_is_replaced(directory: Path) -> None:
    path = directory / "kaas.sock"
    listeners.bind_unix(path, ACCESS, field="socket").close()
    assert path.exists()
    assert not connects(path)
    with listeners.bind_unix(path, ACCESS, field="socket"):
        assert connects(path)


def test_a_live_socket_is_never_replaced(directory: Path) -> None:
    path = directory / "kaas.sock"
    with listeners.bind_unix(path, ACCESS, field="socket"):
        before = listeners.identity(path)
        with pytest.raises(InvalidConfig, match="already listening"):
            listeners.bind_unix(path, ACCESS, field="socket")
        assert listeners.identity(path) == before
        assert connects(path)


def test_a_live_socket_with_a_full_backlog_is_alive(directory: Path) -> None:
    path = directory / "kaas.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as busy:
        busy.bind(str(path))
        busy.listen(0)
        clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(str(path))
        with pytest.raises(InvalidConfig, match="already listening"):
            listeners.bind_unix(path, ACCESS, field="socket")
        for client in clients:
            client.close()


def test_what_is_no_socket_is_left_alone(directory: Path) -> None:
    path = directory / "kaas.sock"
    path.write_text("precious")
    with pytest.raises(InvalidConfig, match="not a socket"):
        listeners.bind_unix(path, ACCESS, field="socket")
    assert path.read_text() == "precious"


def test_a_directory_that_anybody_may_change_is_refused(directory: Path) -> None:
    shared = directory / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(PermissionDenied, match="changed by anybody"):
        listeners.bind_unix(shared / "kaas.sock", ACCESS, field="socket")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
def test_a_directory_of_another_user_is_refused(directory: Path) -> None:
    foreign = directory / "foreign"
    foreign.mkdir()
    os.chown(foreign, 12345, -1)
    with pytest.raises(PermissionDenied, match="another user"):
        listeners.bind_unix(foreign / "kaas.sock", ACCESS, field="socket")


def test_only_our_own_socket_is_removed(directory: Path) -> None:
    path = directory / "kaas.sock"
    with listeners.bind_unix(path, ACCESS, field="socket"):
        own = listeners.identity(path)
    path.unlink()
    (directory / "placeholder").touch()
    with listeners.bind_unix(path, ACCESS, field="socket"):
        listeners.remove_own(path, own)
        assert path.exists()
        listeners.remove_own(path, listeners.identity(path))
        assert not path.exists()


def test_a_busy_port_is_refused_by_name() -> None:
    with listeners.bind_tcp("127.0.0.1", 0, field="rest_address") as first:
        port = first.getsockname()[1]
        with pytest.raises(InvalidConfig) as refusal:
            listeners.bind_tcp("127.0.0.1", port, field="rest_address")
    assert refusal.value.details["field"] == "rest_address"
