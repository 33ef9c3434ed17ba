"""TileLang kernels for the vector core, lowered for real, run on the CPU twin in both schedules."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.twin_launch import Twin, TwinFailure, TwinKernels
from support.twin_toolkit import schedule

from kaas.compiler.twin.install import ensure_twin_home

BLOCKS = 4
LENGTH = 16384
ROWS = 64
HIDDEN = 1536
FP8_HIDDEN = 512
SCHEDULES = [("eager", 0), *(("adversarial", seed) for seed in range(1, 7))]
LOWERING = Path(__file__).parents[1] / "support" / "vector_kernels.py"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Generated Ascend C by kernel name, lowered in a process of its own."""
    output = tmp_path_factory.mktemp("lowered") / "sources.json"
    environment = {**os.environ, "TILELANG_DISABLE_CACHE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, str(LOWERING), str(output)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(output.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def twin() -> Twin:
    return Twin(ensure_twin_home())


def entry_of(source: str) -> str:
    found = re.search(r"__vector__ void (\w+)\(", source)
    assert found is not None
    return found.group(1)


def check(
    kernel: TwinKernels,
    entry: str,
    arguments: list[torch.Tensor],
    results: dict[int, torch.Tensor],
    relative: float,
    absolute: float,
) -> None:
    """Launches in every schedule and compares the arguments at the given positions with their references."""
    for name, seed in SCHEDULES:
        for position in results:
            arguments[position].zero_()
        with schedule(name, seed):
            kernel.launch(entry, *arguments, blocks=BLOCKS)
        for position, expected in results.items():
            torch.testing.assert_close(
                arguments[position].float(),
                expected.float(),
                rtol=relative,
                atol=absolute,
                msg=f"{name} {seed}",
            )


def drawn(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_simd_multiply_add_is_bit_equal_to_torch(twin, sources, dtype):
    source = sources[f"multiply_add_{dtype}"]
    kernel = twin.compile(source)
    x, y = (drawn(LENGTH, dtype=getattr(torch, dtype), seed=seed) for seed in (1, 2))
    check(kernel, entry_of(source), [x, y, torch.zeros_like(x)], {2: x + y * y}, 0, 0)


def test_simd_softmax_over_rows(twin, sources):
    source = sources["softmax"]
    x = drawn(ROWS, 64, dtype=torch.float32, seed=3) * 5
    kernel = twin.compile(source)
    check(kernel, entry_of(source), [x, torch.zeros_like(x)], {1: torch.softmax(x, -1)}, 1e-6, 1e-9)


def test_simd_bf16_through_float_parts(twin, sources):
    source = sources["scale_bf16"]
    x = drawn(LENGTH, dtype=torch.bfloat16, seed=4)
    expected = (x.float() * torch.tensor(0.3)).bfloat16()
    check(twin.compile(source), entry_of(source), [x, torch.zeros_like(x)], {1: expected}, 0, 0)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 2e-3)])
def test_simt_gate(twin, sources, dtype, tolerance):
    source = sources[f"gate_{dtype}"]
    x, g = (drawn(LENGTH, dtype=getattr(torch, dtype), seed=seed) for seed in (5, 6))
    expected = x.float() * torch.sigmoid(g.float())
    kernel = twin.compile(source)
    check(kernel, entry_of(source), [g, x, torch.zeros_like(x)], {2: expected}, tolerance, tolerance)


@pytest.mark.parametrize(("dtype", "relative"), [("float32", 1e-5), ("bfloat16", 2**-8)])
def test_simt_rmsnorm_with_a_reducer(twin, sources, dtype, relative):
    source = sources[f"rmsnorm_{dtype}"]
    x = drawn(ROWS, HIDDEN, dtype=getattr(torch, dtype), seed=7)
    w = drawn(HIDDEN, dtype=getattr(torch, dtype), seed=8)
    exact = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-6) * w.double()
    kernel = twin.compile(source)
    check(kernel, entry_of(source), [w, x, torch.zeros_like(x)], {2: exact}, relative, 1e-6)


def test_simt_row_scaling_to_fp8(twin, sources):
    source = sources["fp8_rows"]
    x = drawn(ROWS, FP8_HIDDEN, dtype=torch.float32, seed=9)
    scale = (x.abs().amax(-1, keepdim=True) / 448).expand(ROWS, 8).contiguous()
    q = torch.zeros(ROWS, FP8_HIDDEN, dtype=torch.uint8).view(torch.float8_e4m3fn)
    expected = (x / scale[:, :1]).to(torch.float8_e4m3fn)
    kernel = twin.compile(source)
    for name, seed in SCHEDULES:
        q.view(torch.uint8).zero_()
        s = torch.zeros_like(scale)
        with schedule(name, seed):
            kernel.launch(entry_of(source), q, s, x, blocks=BLOCKS)
        assert torch.equal(q.view(torch.uint8), expected.view(torch.uint8))
        assert torch.equal(s, scale)


def test_a_missing_flag_before_the_store_shows_in_adversarial_order(twin, sources):
    """Both halves of every V -> MTE3 flag removed: eager order hides it, some adversarial order does not."""
    source, removed = re.subn(
        r"asc_sync_(?:notify|wait)\(PIPE_V, PIPE_MTE3, [^;]*;", "", sources["multiply_add_float32"]
    )
    assert removed >= 2
    kernel = twin.compile(source)
    x, y = (drawn(LENGTH, dtype=torch.float32, seed=seed) for seed in (1, 2))
    z = torch.zeros_like(x)
    wrong = 0
    for seed in range(8):
        z.zero_()
        try:
            with schedule("adversarial", seed):
                kernel.launch(entry_of(source), x, y, z, blocks=BLOCKS)
        except TwinFailure:
            wrong += 1
        else:
            wrong += int(not torch.equal(z, x + y * y))
    assert wrong > 0
