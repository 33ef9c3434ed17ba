"""Specs of the kernel library, built for a target and run on the CPU twin: lower, compile, check, launch."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from support.twin_launch import templates_dir
from support.twin_toolkit import REPORTING, Twin, schedule

from kaas.client.launch_plan import LaunchPlan
from kaas.compiler.lowering import LoweredKernel
from kaas.compiler.twin.install import ensure_twin_home
from kaas.kernel_library.spec import KernelSpec
from kaas.kernel_library.targets import target_named
from kaas.proto.target import Target

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SOC_NAMES = {
    4: "Ascend950PR_950z",
    8: "Ascend950DT_950x",
    28: "Ascend950PR_9579",
    32: "Ascend950DT_9581",
    36: "Ascend950PR_9599",
}
"""One part for every core count that the tests use."""

SCHEDULES = (("eager", 0), *(("adversarial", seed) for seed in range(4)), ("happens-before", 0))


class TwinKernel:
    """One compiled kernel; a launch takes the arguments that a handle would take."""

    def __init__(self, twin: Twin, lowered: LoweredKernel, target: Target) -> None:
        self.lowered = lowered
        self._target = target
        self._plan = LaunchPlan(lowered.launch)
        self._twin = twin
        image = twin.compile(lowered.source, flags=[f"-I{templates_dir()}"], environment=REPORTING)
        self._binary = twin.runtime.load(image)
        self._function = twin.runtime.function(self._binary, lowered.launch.entry)

    def launch(self, *arguments: Any) -> None:
        """Run to the end on a stream of its own; raises DeviceError when the twin finds a fault."""
        block = self._plan.pack(arguments, "cpu")
        if block is None:
            return
        runtime, launch, target = self._twin.runtime, self.lowered.launch, self._target
        # Blocks that wait for each other need as many cores as there are of them.
        runtime.configure_twin(target.soc_name, target.cube_cores, target.vector_cores)
        stream = runtime.create_stream()
        try:
            runtime.launch(
                self._function, launch.block_count, block, self._plan.size, stream, launch.dynamic_ub_bytes
            )
            runtime.synchronize(stream)
        finally:
            runtime.destroy_stream(stream)


@functools.cache
def twin() -> Twin:
    """The twin of this test process."""
    return Twin(ensure_twin_home())


@functools.cache
def lowered(spec: KernelSpec, cube_cores: int) -> LoweredKernel:
    """Source and launch metadata of a spec, lowered once per process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TileLang and TVM warn of their own affairs at import
        from kaas.compiler.lowering import lower

        return lower(spec, target_named(SOC_NAMES[cube_cores]))


@functools.cache
def kernel(spec: KernelSpec, cube_cores: int) -> TwinKernel:
    """The compiled kernel of a spec, built once per process."""
    return TwinKernel(twin(), lowered(spec, cube_cores), target_named(SOC_NAMES[cube_cores]))


def altered_kernel(spec: KernelSpec, cube_cores: int, alter: Callable[[str], str]) -> TwinKernel:
    """The kernel of a spec whose generated source went through ``alter`` first."""
    original = lowered(spec, cube_cores)
    source = alter(original.source)
    altered = LoweredKernel(source=source, launch=original.launch, choices=original.choices)
    return TwinKernel(twin(), altered, target_named(SOC_NAMES[cube_cores]))


def in_every_schedule(run: Callable[[], None]) -> None:
    """Call ``run`` in eager order, under several adversarial seeds, and checked for unordered accesses."""
    for name, seed in SCHEDULES:
        with schedule(name, seed):
            run()


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy at a 32-byte boundary, which every kernel argument needs."""
    if tensor.data_ptr() % 32 == 0:
        return tensor
    room = torch.empty(tensor.numel() + 32 // tensor.element_size(), dtype=tensor.dtype)
    skip = -room.data_ptr() % 32 // tensor.element_size()
    return room[skip : skip + tensor.numel()].view(tensor.shape).copy_(tensor)


def calc_diff(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """1 - 2*sum(x*y) / sum(x^2 + y^2) in float64; 0 for two zero tensors."""
    x, y = actual.double(), expected.double()
    denominator = (x * x + y * y).sum()
    return 0.0 if denominator == 0 else float(1 - 2 * (x * y).sum() / denominator)
