"""The client against a real daemon, real compiles on the CPU twin, and real launches."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.daemon import DaemonProcess, descendants, until

from kaas import (
    DeadlineExceeded,
    DoesNotFit,
    GemmSpec,
    InvalidArgument,
    KaasError,
    KernelHandle,
    RmsNormSpec,
    TargetMismatch,
    aget_kernel,
    get_kernel,
)
from kaas.client import api, exit_status
from kaas.client.kernel_client import KernelClient
from kaas.client.manifest import read_manifest
from kaas.kernel_library.cube.gemm_fields import GemmTile

NOBODY = 65534
EXAMPLES = Path(__file__).parents[2] / "examples"
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")

SPEC = GemmSpec(n=128, k=64, dtype_d="fp32")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("client")) as process:
        process.wait_ready()
        yield process


@pytest.fixture(autouse=True)
def node(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is a client of the module's daemon, with an empty memo."""
    monkeypatch.setenv("KAAS_SOCKET", daemon.socket)
    monkeypatch.setenv("KAAS_STORE", str(daemon.store))
    api.forget()
    yield
    api.forget()


def run_client(daemon: DaemonProcess, code: str, *, user: int | None = None, **environ: str) -> Any:
    """Run ``code`` in a fresh process, as another user if wanted, and return the JSON that it prints last."""
    prelude = "import json, os, torch\nfrom kaas import *\nfrom kaas import GemmSpec, get_kernel\n"
    if user is not None:
        # The interpreter may be out of the other user's reach, so everything is imported before.
        prelude += (
            "import socket, grp, logging, grpc, kaas.client.kernel_client, kaas.client.daemon_link\n"
            "import kaas.client.launch_plan, kaas.client.acl, kaas.proto.v1.kernel_service_pb2_grpc\n"
            f"os.setgroups([]); os.setgid({user}); os.setuid({user})\n"
        )
    names = {"KAAS_SOCKET": daemon.socket, "KAAS_STORE": str(daemon.store), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude + code],
        env={**os.environ, **names, **environ},
        capture_output=True,
        text=True,
        timeout=240,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


LAUNCH = """
def check(gemm, m=33):
    a, b = torch.randn(m, 64).bfloat16(), torch.randn(128, 64).bfloat16()
    d = torch.full((m, 128), float("nan"))
    gemm(a, b, d)
    return torch.allclose(d, a.float() @ b.float().T, rtol=1e-4, atol=1e-4)
SPEC = GemmSpec(n=128, k=64, dtype_d="fp32")
"""


def gemm_tensors(m: int = 33) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b = torch.randn(m, 64).bfloat16(), torch.randn(128, 64).bfloat16()
    return a, b, torch.full((m, 128), float("nan"))


def assert_right(gemm: KernelHandle, m: int = 33) -> None:
    a, b, d = gemm_tensors(m)
    assert gemm(a, b, d) is d
    torch.testing.assert_close(d, a.float() @ b.float().T, rtol=1e-4, atol=1e-4)


def compiler_starts(daemon: DaemonProcess) -> int:
    return daemon.log_text().count("compiler start")


def test_a_cold_spec_is_compiled_launched_and_found_by_others(daemon: DaemonProcess) -> None:
    gemm = get_kernel(SPEC)
    for m in (1, 33, 300):
        assert_right(gemm, m)
    api.forget()
    again = get_kernel(SPEC, strict=True)
    assert (again.origin, again.key) == ("store", gemm.key)
    assert again.launch.entry in again.source


def test_wrong_arguments_never_reach_the_device(daemon: DaemonProcess) -> None:
    gemm = get_kernel(SPEC)
    a, b, d = gemm_tensors()
    for arguments, said in (
        ((a.float(), b, d), "dtype fp32; expected: a bf16 tensor"),
        ((a, b[:, :32], d), r"shape \[128, 32\]"),
        ((a, b, d[:5]), r"shape \[m=33, 128\]"),
        ((a, b, d.T.contiguous().T), "not contiguous"),
        ((a, b), "2 arguments given; expected 3"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            gemm(*arguments)
    assert d.isnan().all()


def test_another_parts_kernel_is_refused_at_launch(daemon: DaemonProcess) -> None:
    other = get_kernel(SPEC, soc_name="Ascend950DT_9581")
    assert other.passport.target.cube_cores == 32
    with pytest.raises(TargetMismatch, match=r"target.soc_name Ascend950DT_9581, .* Ascend950PR_9579"):
        other(*gemm_tensors())


def test_numpy_arrays_launch_like_tensors(daemon: DaemonProcess) -> None:
    import numpy as np

    norm = get_kernel(RmsNormSpec(hidden=576, dtype="fp32"))
    x = np.random.default_rng(0).standard_normal((5, 576), dtype=np.float32)
    weight, y = np.full(576, 2.0, np.float32), np.empty((5, 576), np.float32)
    norm(x, weight, y)
    expected = 2 * x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_threads_with_one_cold_spec_share_one_request_and_one_handle(daemon: DaemonProcess) -> None:
    spec, handles = GemmSpec(n=144, k=64), []
    before = compiler_starts(daemon)
    requests = daemon.log_text().count("joined")
    threads = [threading.Thread(target=lambda: handles.append(get_kernel(spec))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(handles) == 8
    assert len(set(map(id, handles))) == 1
    assert compiler_starts(daemon) == before + 1
    assert daemon.log_text().count("joined") == requests


def test_many_cold_specs_can_be_awaited_together(daemon: DaemonProcess) -> None:
    specs = [GemmSpec(n=n, k=64) for n in (160, 176, 160)]

    async def all_of_them() -> list[KernelHandle]:
        return list(await asyncio.gather(*map(aget_kernel, specs)))

    first, second, third = asyncio.run(all_of_them())
    assert first is third
    assert first.key != second.key


def test_a_short_deadline_is_kept_and_the_compile_goes_on(daemon: DaemonProcess) -> None:
    spec = GemmSpec(n=192, k=64)
    with pytest.raises(DeadlineExceeded, match=r"0\.05 s"):
        get_kernel(spec, timeout=0.05)
    with pytest.raises(DeadlineExceeded):
        asyncio.run(aget_kernel(GemmSpec(n=208, k=64), timeout=0.05))
    assert get_kernel(spec).key


def test_the_daemons_error_arrives_as_its_class(daemon: DaemonProcess) -> None:
    tile = GemmTile(block_m=256, block_n=256, block_k=1024)
    with pytest.raises(DoesNotFit) as caught:
        get_kernel(GemmSpec(n=4096, k=4096, tile=tile))
    assert caught.value.details["excess_bytes"] > 0


def test_a_damaged_artifact_is_rebuilt_and_the_handle_is_right(daemon: DaemonProcess) -> None:
    spec = GemmSpec(n=128, k=64, dtype_d="fp32", layout="nn")
    client = KernelClient(daemon.store, Path(daemon.socket))
    path = client.artifact_path(get_kernel(spec).key)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    api.forget()
    gemm = get_kernel(spec)
    assert gemm.origin == "compiled"
    a, b = torch.randn(7, 64).bfloat16(), torch.randn(64, 128).bfloat16()
    d = gemm(a, b, torch.empty(7, 128))
    torch.testing.assert_close(d, a.float() @ b.float(), rtol=1e-4, atol=1e-4)
    api.forget()
    assert get_kernel(spec).origin == "store"


def test_an_artifact_that_rots_behind_its_mark_is_replaced_before_the_first_launch(
    daemon: DaemonProcess, caplog: pytest.LogCaptureFixture
) -> None:
    spec = GemmSpec(n=112, k=64, dtype_d="fp32")
    get_kernel(spec)
    starts = compiler_starts(daemon)
    api.forget()
    path = KernelClient(daemon.store, Path(daemon.socket)).artifact_path(get_kernel(spec).key)
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    api.forget()
    kernel = get_kernel(spec)
    assert kernel.origin == "store"
    a, b, d = gemm_tensors()
    b = b[:112].contiguous()
    d = torch.full((33, 112), torch.nan)
    kernel(a, b, d)
    torch.testing.assert_close(d, a.float() @ b.float().T, rtol=1e-4, atol=1e-4)
    assert compiler_starts(daemon) == starts + 1
    assert "a damaged artifact is replaced" in caplog.text
    kernel(a, b, d)
    api.forget()
    assert get_kernel(spec).origin == "store"
    assert compiler_starts(daemon) == starts + 1


def test_a_forked_child_launches_and_asks(daemon: DaemonProcess) -> None:
    get_kernel(SPEC)
    code = LAUNCH + (
        "torch.set_num_threads(1)\n"  # its OpenMP threads, unlike kaas, do not survive a fork
        "gemm = get_kernel(SPEC)\n"
        "cold = get_kernel(GemmSpec(n=224, k=64))\n"  # so that the parent has a live connection
        "good = [check(gemm)]\n"
        "reading, writing = os.pipe()\n"
        "for child in range(3):\n"
        "    if os.fork() == 0:\n"
        "        mine = check(gemm) and get_kernel(SPEC) is gemm\n"
        "        mine = mine and bool(get_kernel(GemmSpec(n=224, k=64 + 16 * child)).key)\n"
        "        os.write(writing, b'1' if mine else b'0')\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "good.append(check(gemm))\n"
        "os.close(writing)\n"
        "print(json.dumps([all(good), os.read(reading, 9).decode()]))\n"
    )
    assert run_client(daemon, code) == [True, "111"]


@as_root
def test_hits_need_no_home_no_right_to_write_and_no_daemon() -> None:
    # A directory that any user may enter, which pytest's are not.
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        with DaemonProcess(Path(open_to_all) / "d") as daemon:
            client = KernelClient(daemon.store, Path(daemon.socket))
            key = client.fetch((SPEC, None), 240, strict=False).key
            daemon.kill()
            code = (
                "h = get_kernel(GemmSpec(n=128, k=64, dtype_d='fp32'))\n"
                "print(json.dumps([h.key, h.origin, os.getuid()]))"
            )
            assert run_client(daemon, code, user=NOBODY, HOME="/") == [key, "store", NOBODY]
            assert run_client(daemon, code, user=NOBODY, HOME="/nonexistent") == [key, "store", NOBODY]


@as_root
def test_a_client_that_cannot_read_the_store_gets_the_bytes(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "d", socket_mode="0666") as daemon:
        Path(daemon.socket).parent.chmod(0o755)
        tmp_path.chmod(0o700)
        key = KernelClient(daemon.store, Path(daemon.socket)).fetch((SPEC, None), 240, strict=False).key
        code = (
            "h = get_kernel(GemmSpec(n=128, k=64, dtype_d='fp32'), strict=True)\n"
            "print(json.dumps([h.key, h.origin]))"
        )
        assert run_client(daemon, code, user=NOBODY) == [key, "hit"]


@as_root
def test_an_outsider_is_told_which_group_to_join(daemon: DaemonProcess) -> None:
    Path(daemon.socket).parent.chmod(0o755)
    code = (
        "try:\n    get_kernel(GemmSpec(n=4096, k=64))\n"
        "except PermissionDenied as error:\n    print(json.dumps(str(error)))"
    )
    said = run_client(daemon, code, user=NOBODY)
    assert "may not use the daemon's socket" in said
    assert "join the group" in said


def test_a_daemon_that_dies_and_returns_is_asked_again(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "d") as daemon:
        client = KernelClient(daemon.store, Path(daemon.socket))
        outcome: list[Any] = []

        def ask() -> None:
            try:
                outcome.append(client.fetch((SPEC, None), 240, strict=False))
            except KaasError as error:
                outcome.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: compiler_starts(daemon) > 0, what="the compile")
        daemon.kill()
        daemon.start()
        asking.join(240)
        assert [type(answer) for answer in outcome] == [KernelHandle], outcome
        assert_right(outcome[0])


def kaas(daemon: DaemonProcess, *words: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kaas.client.cli", *words],
        env={**os.environ, "KAAS_SOCKET": daemon.socket, "KAAS_STORE": str(daemon.store)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == status, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done.stdout


def test_the_command_line_shows_what_the_daemon_holds(daemon: DaemonProcess) -> None:
    key = json.loads(kaas(daemon, "get", "gemm", "n=128", "k=64", "dtype_d=fp32", "--json"))["key"]
    listed = json.loads(kaas(daemon, "ls", "--family", "gemm", "--json"))
    assert key in {kernel["key"] for kernel in listed}
    assert key[:12] in kaas(daemon, "ls", "--text", key)
    description = json.loads(kaas(daemon, "show", key[:10], "--json"))
    assert description["passport"]["spec"] == SPEC.to_record()
    assert kaas(daemon, "show", key, "--source").strip() == description["source"].strip()
    assert "target.cube_cores" in kaas(daemon, "show", key)
    assert kaas(daemon, "show", "0" * 64, status=exit_status.NOT_FOUND) == ""
    assert kaas(daemon, "explain", "gemm", "n=128", "k=64", "dtype_d=fp32").startswith(f"hit  {key}")
    miss = kaas(daemon, "explain", "gemm", "n=128", "k=64", "dtype_d=fp32", "--soc", "Ascend950PR_9599")
    assert "target.soc_name" in miss
    assert "36" in miss
    assert kaas(daemon, "health", "--ready") == "ready\n"
    doctor = {finding["subject"]: finding for finding in json.loads(kaas(daemon, "doctor", "--json"))}
    assert doctor["daemon"]["status"] == "ok"
    assert "CPU twin" in doctor["device"]["message"]


def test_prewarm_says_by_its_status_whether_all_is_warm(daemon: DaemonProcess, tmp_path: Path) -> None:
    manifest = tmp_path / "kernels.yaml"
    manifest.write_text(
        "kernels:\n- {family: gemm, n: 128, k: 64, dtype_d: fp32}\n- {family: gemm, n: 240, k: 64}\n"
    )
    events = [json.loads(line) for line in kaas(daemon, "prewarm", str(manifest), "--json").splitlines()]
    assert events[-1]["finished"]
    assert (events[-1]["ready"], events[-1]["failed"]) == (2, 0)
    assert {event["line"] for event in events if "line" in event} == {2, 3}
    assert "2 of 2 kernels are warm" in kaas(daemon, "prewarm", str(manifest))
    kaas(daemon, "get", "gemm", "n=240", "k=64", "--strict")
    manifest.write_text("- {family: gemm, n: 128}\n")
    kaas(daemon, "prewarm", str(manifest), status=exit_status.USAGE)


def test_a_broken_pipe_ends_quietly(daemon: DaemonProcess) -> None:
    command = f"{sys.executable} -m kaas.client.cli families --json"
    with subprocess.Popen(command.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == exit_status.BROKEN_PIPE


@pytest.mark.parametrize("name", ["launch_gemm.py", "many_kernels.py"])
def test_the_examples_run(daemon: DaemonProcess, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "<KernelHandle" in done.stdout


def test_the_examples_manifest_is_legal() -> None:
    assert len(read_manifest(EXAMPLES / "kernels.yaml")) == 4


@pytest.mark.slow
def test_the_demo_ends_well_and_leaves_nothing_running(tmp_path: Path) -> None:
    before = set(Path("/tmp").glob("kaas-demo-*"))
    done = subprocess.run(
        [sys.executable, "-m", "kaas.client.cli", "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "CPU TWIN" in done.stdout
    assert done.stdout.count("key  ") == 3
    assert done.stdout.endswith("demo: all right\n")
    assert set(Path("/tmp").glob("kaas-demo-*")) == before
    assert descendants(str(tmp_path), -1) == []
