"""The compiler pool with real processes: real lowering, staged and twin toolkits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.compiling import LENGTH, PoolRunner, job, running_pool
from support.daemon import until
from support.fake_toolkit import FakeToolkit
from support.twin_toolkit import Twin

from kaas.compiler.generator import LOWERING_MODULES, identify_generator, modules_digest
from kaas.compiler.process_tree import descendants, is_alive
from kaas.compiler.twin.install import ensure_twin_home
from kaas.proto.errors import CompileFailed, InvalidSpec, ShuttingDown, ToolchainMissing, UnknownFamily
from kaas.proto.passport import Generator

GEMM = {"family": "gemm", "m": "dynamic", "n": 96, "k": 160}


@pytest.fixture(scope="module")
def runner(tmp_path_factory) -> Iterator[PoolRunner]:
    with running_pool(tmp_path_factory.mktemp("pool")) as running:
        yield running


@pytest.fixture
def toolkit(tmp_path) -> FakeToolkit:
    return FakeToolkit(tmp_path / "cann")


def test_the_twin_compiles_the_same_bytes_every_time(runner):
    from kaas.compiler.toolkit import read_toolkit

    toolkit = read_toolkit(ensure_twin_home())
    twin_job = job(toolkit.home, spec=GEMM, toolchain=toolkit.identity)

    first, second = runner.compile(twin_job), runner.compile(twin_job)

    assert first.image == second.image
    assert first.image.startswith(b"\x7fELF")
    assert first.source == second.source
    assert "__global__" in first.source
    assert first.launch == second.launch
    assert first.launch.block_count == twin_job.target.cube_cores
    assert [(argument.name, argument.kind) for argument in first.launch.signature] == [
        ("a", "pointer"),
        ("b", "pointer"),
        ("d", "pointer"),
        ("m", "symbol"),
    ]
    assert first.cpu_seconds > 0
    assert 0 < first.peak_rss_bytes < 2 << 30


def test_what_the_pool_compiles_computes_the_right_numbers(runner):
    home = ensure_twin_home()
    output = runner.compile(job(home))
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(LENGTH).astype(np.float32) for _ in range(2))
    c = np.zeros(LENGTH, np.float32)

    by_name = {"a": a, "b": b, "c": c}
    arguments = [by_name[argument.name] for argument in output.launch.signature]
    Twin(home).run(output.image, output.launch.block_count, *arguments, entry=output.launch.entry)

    assert np.array_equal(c, a + b)


def test_the_device_build_runs_the_two_production_command_lines(runner, toolkit):
    output = runner.compile(job(toolkit.home))

    commands = [path.read_text().split() for path in sorted((toolkit.home / "starts").iterdir())]
    compiler, linker = (command[1:] for command in commands)
    assert compiler[:5] == ["-O2", "-fPIC", "-std=c++20", "-mllvm", "-cce-aicore-dcpreload-args=false"]
    assert compiler[5] == "--npu-arch=dav-3510"
    assert compiler[6].startswith("-I")
    assert (Path(compiler[6][2:]) / "tl_templates" / "ascend" / "common.h").is_file()
    assert compiler[7:] == ["--cce-aicore-only", "kernel.asc", "-o", "kernel.rel.o"]
    assert linker[:5] == ["-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file"]
    assert linker[5:] == ["kernel.rel.o", "-o", "kernel.o"]
    assert output.image.startswith(b"IMAGE IMAGE #include")
    assert output.choices == {"tile": 512}


def test_compilers_see_no_variable_of_the_caller(runner, toolkit, monkeypatch):
    monkeypatch.setenv("CPATH", "/somewhere")

    runner.compile(job(toolkit.home))

    assert "PATH" in toolkit.environment()
    assert not {"CPATH", "PYTHONPATH", "VIRTUAL_ENV"} & set(toolkit.environment())


def test_jobs_run_side_by_side_in_processes_of_their_own(runner, toolkit):
    toolkit.behaviour = "barrier"
    pool = runner.pool

    async def three() -> list[bytes]:
        jobs = [asyncio.create_task(pool.compile(job(toolkit.home))) for _ in range(3)]
        while toolkit.waiting() < 3:
            await asyncio.sleep(0.01)
        assert len(set(pool.workers())) == 3
        assert os.getpid() not in pool.workers()
        toolkit.open_barrier()
        return [output.image for output in await asyncio.gather(*jobs)]

    assert len(set(runner.run(three()))) == 1
    assert pool.workers() == []
    assert runner.leftovers() == []


def test_background_work_is_nice_until_somebody_waits_for_it(runner, toolkit):
    toolkit.behaviour = "barrier"
    pool = runner.pool

    def niceness() -> set[int]:
        (worker,) = pool.workers()
        compilers = descendants(worker)
        assert compilers
        return {os.getpriority(os.PRIO_PROCESS, pid) for pid in (worker, *compilers)}

    async def hurried() -> tuple[set[int], set[int]]:
        compile_it = asyncio.create_task(pool.compile(job(toolkit.home, background=True), "its tag"))
        while toolkit.waiting() < 1:
            await asyncio.sleep(0.01)
        before = niceness()
        pool.hurry("another tag")
        assert niceness() == before
        pool.hurry("its tag")
        after = niceness()
        toolkit.open_barrier()
        await compile_it
        return before, after

    before, after = runner.run(hurried())
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert min(before) > own
    assert after in ({own}, {5})  # where it cannot be taken back, it is less nice from the beginning


def test_a_spent_zygote_is_replaced_without_disturbing_its_jobs(tmp_path, toolkit):
    toolkit.behaviour = "barrier"
    with running_pool(tmp_path, max_jobs=1) as runner:
        pool = runner.pool
        first = pool.zygote_pid

        async def across_a_renewal() -> None:
            long = asyncio.create_task(pool.compile(job(toolkit.home)))
            while toolkit.waiting() < 1:
                await asyncio.sleep(0.01)
            next_job = asyncio.create_task(pool.compile(job(toolkit.home)))
            while pool.zygote_pid == first:
                await asyncio.sleep(0.01)
            toolkit.open_barrier()
            await asyncio.gather(long, next_job)

        runner.run(across_a_renewal())

        assert pool.starts == 2
        assert pool.zygote_pid != first
        until(lambda: not is_alive(first), what="the end of the spent zygote")


def test_a_dead_zygote_is_replaced_and_its_running_job_finishes(tmp_path, toolkit):
    toolkit.behaviour = "barrier"
    with running_pool(tmp_path) as runner:
        pool = runner.pool
        first = pool.zygote_pid

        async def lose_the_zygote() -> bytes:
            running = asyncio.create_task(pool.compile(job(toolkit.home)))
            while toolkit.waiting() < 1:
                await asyncio.sleep(0.01)
            os.kill(first, signal.SIGKILL)
            while not pool.is_warm or pool.zygote_pid == first:
                await asyncio.sleep(0.01)
            toolkit.open_barrier()
            return (await running).image

        assert runner.run(lose_the_zygote()).startswith(b"IMAGE")
        assert pool.starts == 1
        assert runner.compile(job(toolkit.home)).image.startswith(b"IMAGE")


def test_a_toolkit_that_changed_since_it_was_described_is_refused(runner, toolkit):
    described = toolkit.read().identity
    (toolkit.home / "include" / "asc.h").write_text("// other intrinsics\n")

    with pytest.raises(CompileFailed, match="has changed") as caught:
        runner.compile(job(toolkit.home, toolchain=described))

    assert caught.value.details["stage"] == "toolkit"
    assert toolkit.starts() == []


def staged_generator() -> Generator:
    """What a daemon would expect of the staged family as it is on disk now."""
    identity = identify_generator()
    return Generator(
        tilelang_version=identity.tilelang_version,
        tilelang_native_digest=identity.native_digest,
        templates_digest=identity.templates_digest,
        lowering_digest=identity.lowering_digest,
        family_digest=modules_digest(["kaas_staged"]),
    )


def test_a_family_edited_on_disk_never_yields_a_kernel_of_the_old_key(tmp_path, toolkit, monkeypatch):
    source = tmp_path / "families" / "kaas_staged.py"
    with running_pool(tmp_path) as runner:
        monkeypatch.syspath_prepend(source.parent)
        pool = runner.pool
        described = staged_generator()
        first = runner.compile(job(toolkit.home, generator=described))
        source.write_text(source.read_text().replace("left[lane] + right[lane]", "left[lane] - right[lane]"))

        # The living zygote has imported the old module, but TileLang takes a program's text from the file.
        with pytest.raises(CompileFailed, match=r"generator\.family_digest"):
            runner.compile(job(toolkit.home, generator=described))

        async def renew() -> None:
            before = pool.zygote_pid
            os.kill(before, signal.SIGKILL)
            while not pool.is_warm or pool.zygote_pid == before:
                await asyncio.sleep(0.01)

        runner.run(renew())
        starts = pool.starts, len(toolkit.starts())
        with pytest.raises(
            CompileFailed, match=r"daemon looked at them: generator\.family_digest "
        ) as caught:
            runner.compile(job(toolkit.home, generator=described))
        assert caught.value.details["stage"] == "generator"
        assert caught.value.details["deterministic"] is False
        assert "restart the daemon" in caught.value.hint
        assert (pool.starts, len(toolkit.starts())) == (starts[0] + 1, starts[1])

        second = runner.compile(job(toolkit.home, generator=staged_generator()))
        assert second.source != first.source


def test_a_family_that_changes_while_it_is_imported_is_not_compiled_with(tmp_path):
    runner = PoolRunner(tmp_path)
    source = tmp_path / "families" / "kaas_staged.py"
    source.write_text(source.read_text() + "\nopen(__file__, 'a').write('# another line\\n')\n")
    try:
        with pytest.raises(CompileFailed, match="while it was imported") as caught:
            runner.run(runner.pool.start())
        assert caught.value.details["stage"] == "generator"
        assert not runner.pool.is_warm
    finally:
        runner.run(runner.pool.close())
        runner.runner.close()


def test_nothing_that_lowers_is_imported_before_it_is_identified():
    show = "import sys, kaas.compiler.zygote; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)

    imported = set(done.stdout.split())
    assert "kaas.compiler.zygote" in imported
    assert not imported & {*LOWERING_MODULES, "kaas.kernel_library.registry", "tilelang"}


@pytest.mark.parametrize(
    ("spec", "error", "field"),
    [
        ({"family": "gemmm"}, UnknownFamily, "family"),
        ({"family": "gemm", "n": 0, "k": 64}, InvalidSpec, "n"),
    ],
)
def test_errors_of_the_spec_come_back_as_they_are(runner, toolkit, spec, error, field):
    with pytest.raises(error) as caught:
        runner.compile(job(toolkit.home, spec=spec))

    assert caught.value.details["field"] == field


def test_a_missing_toolkit_is_named(runner, tmp_path):
    with pytest.raises(ToolchainMissing, match="not a directory"):
        runner.compile(job(tmp_path / "gone"))


def test_another_target_changes_the_grid(runner, toolkit):
    from kaas.kernel_library.targets import target_named

    wide = target_named("Ascend950DT_9581")
    output = runner.compile(msgspec.structs.replace(job(toolkit.home), target=wide))

    assert output.launch.block_count == wide.vector_cores == 64
    assert output.launch.parameters[0].shape == (LENGTH,)


def test_a_closed_pool_takes_no_jobs_and_leaves_no_process(tmp_path, toolkit):
    toolkit.behaviour = "hang"
    with running_pool(tmp_path) as runner:
        pool = runner.pool
        zygote = pool.zygote_pid

        async def close_under_way() -> None:
            running = asyncio.create_task(pool.compile(job(toolkit.home)))
            while toolkit.pid("escaped") is None:
                await asyncio.sleep(0.01)
            await pool.close()
            with pytest.raises(ShuttingDown):
                await running
            with pytest.raises(ShuttingDown):
                await pool.compile(job(toolkit.home))

        runner.run(close_under_way())

        assert not is_alive(zygote)
        for name in ("compiler", "child", "escaped"):
            assert not is_alive(toolkit.pid(name))


def test_a_pool_without_tilelang_says_how_to_install_it(tmp_path, monkeypatch):
    fake = tmp_path / "packages" / "tilelang"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("raise ImportError('libz3.so is missing')\n")
    runner = PoolRunner(tmp_path)
    runner.pool._environ = {**os.environ, "PYTHONPATH": str(fake.parent)}
    try:
        with pytest.raises(ToolchainMissing, match=r"libz3\.so is missing") as caught:
            runner.run(runner.pool.start())
        assert "pip install" in caught.value.hint
        assert not runner.pool.is_warm
    finally:
        runner.run(runner.pool.close())
        runner.runner.close()
