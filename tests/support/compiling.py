"""A warm compiler pool on an event loop of its own, and jobs for it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.fake_toolkit import families_path, python_path

from kaas.compiler.compile_options import effective_options
from kaas.compiler.job import CompileJob, CompileLimits
from kaas.compiler.pool import CompilerPool
from kaas.kernel_library.targets import target_named

TARGET = target_named("Ascend950PR_9579")
LENGTH = 512 * TARGET.vector_cores


def job(
    home: Path,
    mode: str = "build",
    *,
    spec: Mapping[str, Any] | None = None,
    wall_s: float = 60.0,
    memory_bytes: int = 2 << 30,
    **fields: Any,
) -> CompileJob:
    """A job for the toolkit at ``home``: the staged family in ``mode``, or another ``spec``."""
    return CompileJob(
        spec=dict(spec or {"family": "staged", "length": LENGTH, "mode": mode}),
        target=TARGET,
        toolkit_home=str(home),
        options=effective_options(TARGET),
        limits=CompileLimits(wall_s=wall_s, memory_bytes=memory_bytes),
        **fields,
    )


class PoolRunner:
    """Runs coroutines on the pool's own loop; the pool stays warm between tests."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.runner = asyncio.Runner()
        self.scratch = folder / "tmp"
        self.scratch.mkdir()
        environ = {**os.environ, "PYTHONPATH": python_path(families_path(folder / "families"))}
        self.pool = CompilerPool(environ=environ, **options)

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def compile(self, compile_job: CompileJob) -> Any:
        return self.run(self.pool.compile(compile_job))

    def leftovers(self) -> list[str]:
        """Job folders that exist now."""
        return [path.name for path in self.scratch.glob("kaas-compile-*/job-*")]


@contextmanager
def running_pool(folder: Path, **options: Any) -> Iterator[PoolRunner]:
    """A started pool whose temporary files lie below ``folder``; closed in the end."""
    runner = PoolRunner(folder, **options)
    before = tempfile.tempdir
    tempfile.tempdir = str(runner.scratch)
    try:
        runner.run(runner.pool.start())
        yield runner
    finally:
        tempfile.tempdir = before
        runner.run(runner.pool.close())
        runner.runner.close()
        assert list(runner.scratch.iterdir()) == []
