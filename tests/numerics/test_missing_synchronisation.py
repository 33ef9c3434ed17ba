"""The adversarial schedules see a flag that is taken out: every pair of our kernels is needed and tested."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from support.twin_kernels import TwinKernel, aligned, altered_kernel
from support.twin_toolkit import schedule

from kaas.kernel_library.families.gemm import GemmSpec
from kaas.kernel_library.families.rmsnorm import RmsNormSpec
from kaas.kernel_library.gemm_fields import GemmTile
from kaas.proto.errors import DeviceError

SEEDS = range(24)
TILE = GemmTile(block_m=16, block_n=32, block_k=32)
CUBE = GemmSpec(m=112, n=128, k=224, tile=TILE)
MIXED = GemmSpec(m=112, n=128, k=224, accumulate=True, alpha=True, tile=TILE)
ROWS = RmsNormSpec(hidden=256, residual=True)


def without(pattern: str) -> Callable[[str], str]:
    """Take every statement out that matches; fails if there is none."""

    def alter(source: str) -> str:
        altered, count = re.subn(rf"(?m)^\s*{pattern}.*;\n", "", source)
        assert count > 0
        return altered

    return alter


def without_flags(source_pipe: str, target_pipe: str) -> Callable[[str], str]:
    """Take both halves of a flag out: with one half alone the twin reports a deadlock or a leftover."""
    return without(rf"asc_sync_(?:notify|wait)\({source_pipe}, {target_pipe},")


def gemm_is_right(built: TwinKernel, spec: GemmSpec) -> bool:
    generator = torch.Generator().manual_seed(3)

    def values(*size: int) -> torch.Tensor:
        return aligned(torch.randint(-2, 3, size, generator=generator).to(torch.bfloat16))

    a, b, d = values(112, 224), values(128, 224), values(112, 128)
    expected = a.double() @ b.double().T
    if spec.accumulate:
        expected = expected * 2.0 + d.double()
    built.launch(a, b, d, *((2.0,) if spec.alpha else ()))
    return torch.equal(d, expected.to(torch.bfloat16))


def rows_are_right(built: TwinKernel) -> bool:
    generator = torch.Generator().manual_seed(3)
    rows = 8 * built.lowered.choices["rows"] * (built.lowered.choices["stages"] + 2)
    x, old = (aligned(torch.randn((rows, 256), generator=generator).to(torch.bfloat16)) for _ in range(2))
    total = (x.float() + old.float()).to(torch.bfloat16)
    wide = total.double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + ROWS.eps)
    y = aligned(torch.zeros_like(x))
    built.launch(x, old, aligned(torch.ones(256, dtype=torch.bfloat16)), y)
    close = ((y.double() - expected).abs() <= expected.abs() * 2.0**-8).all()
    return bool(close) and torch.equal(old, total)


def is_noticed(is_right: Callable[[], bool]) -> bool:
    """Whether some seed gives a wrong number or a fault."""
    for seed in SEEDS:
        with schedule("adversarial", seed):
            try:
                if not is_right():
                    return True
            except DeviceError:
                return True
    return False


CUBE_FLAGS = [
    ("PIPE_MTE2", "PIPE_MTE1"),
    ("PIPE_MTE1", "PIPE_MTE2"),
    ("PIPE_MTE1", "PIPE_M"),
    ("PIPE_M", "PIPE_MTE1"),
    ("PIPE_M", "PIPE_FIX"),
    ("PIPE_FIX", "PIPE_M"),
]
VECTOR_FLAGS = [
    ("PIPE_MTE2", "PIPE_V"),
    ("PIPE_V", "PIPE_MTE2"),
    ("PIPE_V", "PIPE_MTE3"),
    ("PIPE_MTE3", "PIPE_V"),
]
ROW_FLAGS = [("PIPE_MTE2", "PIPE_V"), ("PIPE_V", "PIPE_MTE3"), ("PIPE_MTE3", "PIPE_MTE2")]


@pytest.mark.parametrize("flags", CUBE_FLAGS, ids=">".join)
def test_a_gemm_without_a_flag_is_noticed(flags: tuple[str, str]) -> None:
    built = altered_kernel(CUBE, 4, without_flags(*flags))
    assert is_noticed(lambda: gemm_is_right(built, CUBE))


@pytest.mark.parametrize("flags", VECTOR_FLAGS, ids=">".join)
def test_a_vector_epilogue_without_a_flag_is_noticed(flags: tuple[str, str]) -> None:
    built = altered_kernel(MIXED, 4, without_flags(*flags))
    assert is_noticed(lambda: gemm_is_right(built, MIXED))


def test_a_vector_epilogue_without_its_core_flags_is_noticed() -> None:
    built = altered_kernel(MIXED, 4, without(r"asc_sync_intra_(?:arrive|wait)\("))
    assert is_noticed(lambda: gemm_is_right(built, MIXED))


@pytest.mark.parametrize("flags", ROW_FLAGS, ids=">".join)
def test_an_rmsnorm_without_a_flag_is_noticed(flags: tuple[str, str]) -> None:
    built = altered_kernel(ROWS, 4, without_flags(*flags))
    assert is_noticed(lambda: rows_are_right(built))


def test_the_unaltered_kernels_pass_the_same_checks() -> None:
    cube, mixed, rows = (altered_kernel(spec, 4, str) for spec in (CUBE, MIXED, ROWS))
    assert not is_noticed(lambda: gemm_is_right(cube, CUBE))
    assert not is_noticed(lambda: gemm_is_right(mixed, MIXED))
    assert not is_noticed(lambda: rows_are_right(rows))
