"""Where a daemon's files lie, and what happens when somebody takes its sockets or opens its store."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from support.daemon import DaemonProcess, until
from support.fake_toolkit import FakeToolkit
from support.fault_counts import Counter
from support.small_disk import small_disk

from kaas.proto.locations import lease_socket
from kaas.proto.v1 import kernel_service_pb2 as pb
from kaas.proto.v1 import kernel_service_pb2_grpc as pb_grpc
from kaas.server import listeners

_MS_NOEXEC, _MS_REMOUNT = 8, 32


def staged(directory: Path, **options: str) -> DaemonProcess:
    """A daemon whose toolkit is made up, so that it starts at once."""
    toolkit = FakeToolkit(directory / "toolkit")
    return DaemonProcess(directory / "node", toolkit_home=str(toolkit.home), **options)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with staged(tmp_path) as process:
        yield process


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(str(path)) == 0


def answers(path: Path) -> bool:
    """Whether a new connection gets an answer from a daemon."""
    with grpc.insecure_channel(f"unix:{path}") as channel:
        try:
            pb_grpc.KernelServiceStub(channel).GetEnvironment(pb.GetEnvironmentRequest(), timeout=10)
        except grpc.RpcError:
            return False
    return True


def delete_file(path: Path) -> None:
    path.unlink()


def delete_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("delete", [delete_file, delete_directory])
def test_a_deleted_socket_comes_back_and_nobody_connected_notices(
    daemon: DaemonProcess, delete: Callable[[Path], None], count_fault: Counter
) -> None:
    main = Path(daemon.socket)
    mode = main.stat().st_mode
    with grpc.insecure_channel(f"unix:{main}") as channel:
        stub = pb_grpc.KernelServiceStub(channel)
        stub.GetEnvironment(pb.GetEnvironmentRequest(), timeout=30)
        for _ in range(1 if delete is delete_directory else 2):
            lease_socket(main).unlink()
            delete(main)
            count_fault("socket: deleted under a live daemon")
            stub.GetEnvironment(pb.GetEnvironmentRequest(), timeout=30)
            until(lambda: connects(main) and connects(lease_socket(main)), what="the sockets")
            assert answers(main)
            assert main.stat().st_mode == mode
            stub.GetEnvironment(pb.GetEnvironmentRequest(), timeout=30)
    assert "was deleted, and is there again" in daemon.log_text()
    assert daemon.stop() == 0
    assert not main.exists()
    assert not lease_socket(main).exists()


def test_a_deleted_rest_socket_comes_back_like_the_others(tmp_path: Path, count_fault: Counter) -> None:
    daemon = staged(tmp_path)
    rest = Path(daemon.socket).with_name("rest.sock")
    daemon.options["rest_address"] = f"unix:{rest}"
    with daemon:
        mode = rest.stat().st_mode
        connected = httpx.Client(transport=httpx.HTTPTransport(uds=str(rest)), base_url="http://kaas")
        with connected:
            assert connected.get("/healthz").status_code == 200
            for _ in range(2):
                rest.unlink()
                count_fault("socket: deleted under a live daemon")
                until(lambda: connects(rest), what="the socket")
                assert rest.stat().st_mode == mode
                new = httpx.Client(transport=httpx.HTTPTransport(uds=str(rest)), base_url="http://kaas")
                with new:
                    assert new.get("/healthz").status_code == 200
                assert connected.get("/healthz").status_code == 200
        assert f"{rest} was deleted, and is there again" in daemon.log_text()
        assert daemon.stop() == 0
        assert not rest.exists()


def test_what_another_process_put_in_the_sockets_place_is_left_alone(
    daemon: DaemonProcess, count_fault: Counter
) -> None:
    main = Path(daemon.socket)
    main.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as successor:
        successor.bind(str(main))
        successor.listen()
        count_fault("socket: taken by another process")
        own = listeners.identity(main)
        lease_socket(main).unlink()
        # When the lease socket is back, the main one has been looked at, too.
        until(lambda: connects(lease_socket(main)), what="the socket for leases")
        assert listeners.identity(main) == own
        assert daemon.stop() == 0
        assert listeners.identity(main) == own


@pytest.mark.parametrize(
    ("part", "mode"), [("", 0o777), ("", 0o775), ("artifacts", 0o777), ("staging", 0o770), ("..", 0o777)]
)
def test_a_store_that_others_can_write_to_is_refused_in_one_line_with_its_cure(
    tmp_path: Path, part: str, mode: int, count_fault: Counter
) -> None:
    daemon = staged(tmp_path)
    (daemon.store / "artifacts").mkdir(parents=True)
    (daemon.store / "staging").mkdir(mode=0o700)
    opened = (daemon.store / part).resolve()
    opened.chmod(mode)
    count_fault("store: writable by others")
    run = subprocess.run(
        daemon.command(), env=daemon.environ, capture_output=True, text=True, timeout=120, check=False
    )
    daemon.discard()
    assert run.returncode == 2
    said = run.stderr.splitlines()[-1]
    assert said.startswith("kaas: ")
    assert f"{opened} (mode {mode:04o})" in said
    assert "chmod" in said
    assert "Traceback" not in run.stderr


@pytest.mark.slow
def test_a_kernel_in_a_store_without_execution_is_launched(tmp_path: Path, count_fault: Counter) -> None:
    """Images are mapped from memory, never from the store, so noexec is no reason to refuse it."""
    with small_disk(tmp_path / "disk", 256 << 20) as disk:
        libc = ctypes.CDLL(None, use_errno=True)
        flags = _MS_REMOUNT | _MS_NOEXEC
        if libc.mount(b"kaas-test", os.fsencode(disk), b"tmpfs", flags, b"") != 0:
            pytest.skip("no file system can be mounted anew here")
        script = disk / "script"
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
        with pytest.raises(PermissionError):
            subprocess.run([str(script)], check=False)
        count_fault("store: mounted noexec")
        with DaemonProcess(tmp_path / "node", store=str(disk / "store")) as daemon:
            run = subprocess.run(
                [sys.executable, "-c", _LAUNCH_FROM_STORE],
                env={**os.environ, "KAAS_SOCKET": daemon.socket, "KAAS_STORE": str(daemon.store)},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert run.returncode == 0, run.stderr
            assert run.stdout.split() == ["compiled", "store"]
            assert len(list(daemon.store.glob("artifacts/*/*.kernel"))) == 1


_LAUNCH_FROM_STORE = """
import torch
import kaas
from kaas.client import api

spec = kaas.RmsNormSpec(hidden=64, dtype="fp32")
for _ in range(2):
    norm = kaas.get_kernel(spec)
    x, weight, y = torch.randn(3, 64), torch.ones(64), torch.empty(3, 64)
    norm(x, weight, y)
    torch.testing.assert_close(y, x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6))
    print(norm.origin)
    api.forget()
"""
