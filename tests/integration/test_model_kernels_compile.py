"""Every kernel that public models want for inference compiles, in the pool that the daemon compiles with."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.compiling import running_pool
from support.model_configs import MODELS, SOC_NAME, derived, serving

from kaas.compiler.compile_options import effective_options
from kaas.compiler.job import CompileJob, CompileLimits
from kaas.compiler.twin.install import ensure_twin_home
from kaas.kernel_library.spec import KernelSpec
from kaas.kernel_library.targets import target_named
from kaas.proto.errors import KaasError

TARGET = target_named(SOC_NAME)
AT_ONCE = min(2, len(os.sched_getaffinity(0)))
"""Compiles that run at the same time: as many as the smallest machine that tests run on has cores."""


def wanted() -> dict[KernelSpec, list[str]]:
    """Each spec once, with the models that want it."""
    found: dict[KernelSpec, list[str]] = {}
    for model in MODELS:
        for entry in derived(model, serving(model)).entries:
            for spec in entry.kernels():
                models = found.setdefault(spec, [])
                if model not in models:
                    models.append(model)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 275 s of processor time, which others may want, too
def test_every_kernel_of_every_model_compiles(tmp_path: Path) -> None:
    home = ensure_twin_home()
    specs = wanted()
    assert {model for models in specs.values() for model in models} == set(MODELS)
    assert len(MODELS) >= 6
    assert len(specs) > 100
    images: dict[KernelSpec, bytes] = {}
    failures: list[str] = []

    with running_pool(tmp_path) as pool:

        async def compile_all() -> None:
            room = asyncio.Semaphore(AT_ONCE)

            async def compile_one(spec: KernelSpec) -> None:
                job = CompileJob(
                    spec=spec.to_record(),
                    target=TARGET,
                    toolkit_home=str(home),
                    options=effective_options(TARGET),
                    limits=CompileLimits(wall_s=300, memory_bytes=4 << 30),
                )
                async with room:
                    try:
                        output = await pool.pool.compile(job)
                    except KaasError as error:
                        failures.append(f"{', '.join(specs[spec])}: {spec}: {error}")
                        return
                images[spec] = output.image

            async with asyncio.TaskGroup() as group:
                for spec in specs:
                    group.create_task(compile_one(spec))

        pool.run(compile_all())
    assert failures == []
    assert images.keys() == specs.keys()
    assert all(image.startswith(b"\x7fELF") for image in images.values())
