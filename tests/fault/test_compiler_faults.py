"""Compilers and workers that hang, crash, eat memory or lie: the right error, nothing left, others go on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.compiling import PoolRunner, job, running_pool
from support.daemon import until
from support.fake_toolkit import FakeToolkit, families_path, python_path

from kaas.compiler.process_tree import is_alive
from kaas.compiler.work_root import WorkRoot
from kaas.proto.errors import CompileFailed, CompileOutOfMemory, CompileTimeout, WorkerCrashed

MIB = 1 << 20


@pytest.fixture(scope="module")
def runner(tmp_path_factory) -> Iterator[PoolRunner]:
    with running_pool(tmp_path_factory.mktemp("pool")) as running:
        yield running


@pytest.fixture
def toolkit(tmp_path) -> FakeToolkit:
    return FakeToolkit(tmp_path / "cann")


@pytest.fixture(autouse=True)
def _nothing_is_left(runner) -> Iterator[None]:
    yield
    assert runner.pool.workers() == []
    assert runner.leftovers() == []


def assert_gone(toolkit: FakeToolkit, *names: str) -> None:
    for name in names:
        pid = toolkit.pid(name)
        assert pid is not None, f"{name} never ran"
        assert not is_alive(pid), f"{name} is still there"


def test_a_hung_compiler_is_killed_with_all_its_children_while_others_go_on(runner, toolkit, tmp_path):
    toolkit.behaviour = "hang"
    other = FakeToolkit(tmp_path / "other")
    pool = runner.pool

    async def both() -> None:
        hung = asyncio.create_task(pool.compile(job(toolkit.home, wall_s=10.0)))
        while toolkit.pid("escaped") is None and not hung.done():
            await asyncio.sleep(0.01)
        # Asked for while the other one hangs; whether it ends before the kill is the machine's affair.
        assert (await pool.compile(job(other.home))).image
        with pytest.raises(CompileTimeout) as caught:
            await hung
        assert caught.value.details["stage"] == "bisheng"
        assert caught.value.details["limit_s"] == 10.0

    runner.run(both())
    assert_gone(toolkit, "compiler", "child", "escaped")


def test_a_hung_compiler_and_a_child_deaf_to_sigterm_are_gone_two_seconds_after_the_deadline(
    runner, toolkit, tmp_path
):
    toolkit.behaviour = "hang"
    other = FakeToolkit(tmp_path / "other")
    pool, limit_s = runner.pool, 4.0

    async def compete() -> None:
        hung = asyncio.create_task(pool.compile(job(toolkit.home, wall_s=limit_s)))
        while not pool.workers() and not hung.done():
            await asyncio.sleep(0.001)
        # The worker runs: its deadline is less than this witness's end less two seconds.
        witness = asyncio.create_task(asyncio.sleep(limit_s + 2.0))
        other_kernel = asyncio.create_task(pool.compile(job(other.home)))
        first, _ = await asyncio.wait((hung, witness), return_when=asyncio.FIRST_COMPLETED)
        assert first == {hung}
        assert_gone(toolkit, "compiler", "child", "escaped")
        assert isinstance(hung.exception(), CompileTimeout)
        assert (await other_kernel).image.startswith(b"IMAGE")
        await witness

    runner.run(compete())


def test_a_hang_inside_native_lowering_is_killed(runner, toolkit):
    with pytest.raises(CompileTimeout) as caught:
        runner.compile(job(toolkit.home, "hang", wall_s=0.5))

    assert caught.value.details["stage"] == "lower"
    assert toolkit.starts() == []


@pytest.mark.parametrize(("behaviour", "name"), [("memory", "compiler"), ("child-memory", "child")])
def test_a_compiler_that_eats_memory_is_killed_at_the_limit(runner, toolkit, behaviour, name):
    toolkit.behaviour = behaviour

    with pytest.raises(CompileOutOfMemory) as caught:
        runner.compile(job(toolkit.home, memory_bytes=512 * MIB))

    assert caught.value.details["limit_bytes"] == 512 * MIB
    assert caught.value.details["stage"] == "bisheng"
    assert len(toolkit.starts()) == 1
    assert_gone(toolkit, name)


def test_lowering_that_eats_memory_is_killed_at_the_limit(runner, toolkit):
    with pytest.raises(CompileOutOfMemory) as caught:
        runner.compile(job(toolkit.home, "hoard", memory_bytes=512 * MIB))

    assert caught.value.details["stage"] == "lower"


def test_a_compiler_that_leaves_a_daemon_behind_loses_it(runner, toolkit):
    toolkit.behaviour = "dangle"

    output = runner.compile(job(toolkit.home))

    assert output.image.startswith(b"IMAGE")
    assert_gone(toolkit, "escaped")


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [("empty", "empty"), ("nothing", "missing"), ("directory", "not a regular file")],
)
def test_success_without_a_proper_output_is_a_failure(runner, toolkit, behaviour, problem):
    toolkit.behaviour = behaviour

    with pytest.raises(CompileFailed, match=problem) as caught:
        runner.compile(job(toolkit.home))

    assert caught.value.details["stage"] == "bisheng"
    assert caught.value.details["deterministic"] is True
    assert len(toolkit.starts()) == 2  # it may have been a full disk: one more chance, then it is believed


def test_a_rejected_source_is_shown_and_not_tried_again(runner, toolkit):
    toolkit.behaviour = "reject"

    with pytest.raises(CompileFailed, match="no such intrinsic") as caught:
        runner.compile(job(toolkit.home))

    details = caught.value.details
    assert details["stage"] == "bisheng"
    assert details["deterministic"] is True
    assert "1 error generated." in details["log_tail"]
    assert ">    3 | " in details["source_excerpt"]
    assert len(toolkit.starts()) == 1


def test_endless_output_is_bounded_and_its_end_is_kept(runner, toolkit):
    toolkit.behaviour = "chatter"

    with pytest.raises(CompileFailed, match="the last words") as caught:
        runner.compile(job(toolkit.home))

    assert len(caught.value.details["log_tail"]) <= 8000
    assert caught.value.details["log_tail"].endswith("the last words\n")


def test_a_compiler_killed_by_a_signal_is_tried_once_more(runner, toolkit):
    toolkit.behaviour = "crash-once"

    assert runner.compile(job(toolkit.home)).image.startswith(b"IMAGE")
    assert len(toolkit.starts()) == 2


def test_a_compiler_that_always_crashes_is_tried_twice_and_reported_as_transient(runner, toolkit):
    toolkit.behaviour = "crash"

    with pytest.raises(CompileFailed, match="SIGSEGV") as caught:
        runner.compile(job(toolkit.home))

    assert caught.value.details["deterministic"] is False
    assert caught.value.details["signal"] == "SIGSEGV"
    assert len(toolkit.starts()) == 2


@pytest.mark.parametrize(("mode", "detail"), [("crash", {"signal": "SIGSEGV"}), ("exit", {"exit_status": 3})])
def test_a_worker_that_dies_in_lowering_is_reported_with_its_end(runner, toolkit, mode, detail):
    before = runner.pool.starts

    with pytest.raises(WorkerCrashed) as caught:
        runner.compile(job(toolkit.home, mode))

    assert detail.items() <= caught.value.details.items()
    assert caught.value.details["stage"] == "lower"
    assert runner.pool.starts == before + 2


@pytest.mark.parametrize(
    ("mode", "message"),
    [("raise", "does not like this"), ("misname", "argument c is neither a parameter nor a dynamic extent")],
)
def test_whatever_lowering_raises_is_a_deterministic_failure(runner, toolkit, mode, message):
    before = runner.pool.starts

    with pytest.raises(CompileFailed) as caught:
        runner.compile(job(toolkit.home, mode))

    assert message in caught.value.details["log_tail"]
    assert caught.value.details["stage"] == "lower"
    assert caught.value.details["deterministic"] is True
    assert "Traceback" not in str(caught.value)
    assert runner.pool.starts == before + 1


def test_a_worker_killed_from_outside_is_replaced_and_its_tree_is_gone(runner, toolkit):
    toolkit.behaviour = "hang"
    pool = runner.pool

    async def kill_it() -> bytes:
        running = asyncio.create_task(pool.compile(job(toolkit.home)))
        while toolkit.pid("escaped") is None:
            await asyncio.sleep(0.01)
        toolkit.behaviour = "compile"
        (worker,) = pool.workers()
        os.kill(worker, signal.SIGKILL)
        return (await running).image

    assert runner.run(kill_it()).startswith(b"IMAGE")
    assert_gone(toolkit, "compiler", "child", "escaped")


def test_a_supervisor_killed_from_outside_takes_its_job_along(runner, toolkit):
    toolkit.behaviour = "hang"
    pool = runner.pool

    async def kill_it() -> bytes:
        running = asyncio.create_task(pool.compile(job(toolkit.home)))
        while toolkit.pid("escaped") is None:
            await asyncio.sleep(0.01)
        toolkit.behaviour = "compile"
        (worker,) = pool.workers()
        supervisor = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(supervisor, signal.SIGKILL)
        return (await running).image

    assert runner.run(kill_it()).startswith(b"IMAGE")
    until(lambda: not is_alive(toolkit.pid("escaped")), what="the end of the escaped child")
    assert_gone(toolkit, "compiler", "child", "escaped")


def test_a_cancelled_compile_is_killed_at_once(runner, toolkit):
    toolkit.behaviour = "hang"
    pool = runner.pool

    async def cancel_it() -> None:
        running = asyncio.create_task(pool.compile(job(toolkit.home)))
        while toolkit.pid("escaped") is None:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    runner.run(cancel_it())
    assert_gone(toolkit, "compiler", "child", "escaped")
    assert len(toolkit.starts()) == 1


@pytest.mark.parametrize("also_the_zygote", [False, True])
def test_no_compile_survives_a_killed_daemon(toolkit, tmp_path, also_the_zygote):
    toolkit.behaviour = "hang"
    daemon = tmp_path / "daemon.py"
    daemon.write_text(
        textwrap.dedent(
            """
            import asyncio, sys
            from pathlib import Path
            sys.path.insert(0, sys.argv[1])
            from support.compiling import job
            from kaas.compiler.pool import CompilerPool

            async def main():
                pool = CompilerPool()
                await pool.start()
                print(pool.zygote_pid, flush=True)
                await pool.compile(job(Path(sys.argv[2])))

            asyncio.run(main())
            """
        )
    )
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environ = {
        **os.environ,
        "PYTHONPATH": python_path(families_path(tmp_path / "families")),
        "TMPDIR": str(scratch),
    }
    tests = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, str(daemon), tests, str(toolkit.home)],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            zygote = int(process.stdout.readline())
            until(lambda: toolkit.pid("escaped"), 60, "the start of the compiler")
        finally:
            process.kill()
            if also_the_zygote:
                os.kill(zygote, signal.SIGKILL)

    names = ("compiler", "child", "escaped")
    until(lambda: not any(is_alive(toolkit.pid(name)) for name in names), what="the end of the compile")
    until(lambda: not is_alive(zygote), what="the end of the zygote")
    until(lambda: not list(scratch.glob("kaas-compile-*/job-*")), what="the end of its files")


def test_folders_of_killed_daemons_are_removed_and_those_of_live_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    prefix = f"kaas-compile-{os.getuid()}-"
    for name in (f"{prefix}dead", f"{prefix}young", "somebody-elses"):
        (tmp_path / name / "job-1").mkdir(parents=True)
        (tmp_path / name / "lock").touch()
    live = WorkRoot.create()
    for path in (live.path, tmp_path / f"{prefix}dead"):
        os.utime(path, (1, 1))

    other = WorkRoot.create()

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {live.path.name, other.path.name, f"{prefix}young", "somebody-elses"}
    live.remove()
    other.remove()
    assert {path.name for path in tmp_path.iterdir()} == {f"{prefix}young", "somebody-elses"}
