"""TileLang GEMMs, lowered live, on the CPU twin: right in every order of pipes, and only with their flags."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.twin_toolkit import Twin, bf16, schedule

from kaas.compiler.twin.install import ensure_twin_home
from kaas.proto.errors import DeviceError

ROWS, COLUMNS, DEPTH, BLOCKS = 200, 280, 330, 4
LOWERING = Path(__file__).parents[1] / "support" / "twin_gemm_kernels.py"
SYNC = re.compile(r"asc_sync_(?:notify|wait)\((PIPE_\w+), (PIPE_\w+), [^;]*;")


@pytest.fixture(scope="module")
def twin() -> Twin:
    return Twin(ensure_twin_home())


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("lowered") / "sources.json"
    environment = {**os.environ, "TILELANG_DISABLE_CACHE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, str(LOWERING), str(output)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lowered: dict[str, str] = json.loads(output.read_text())
    return lowered


def template_flags() -> list[str]:
    spec = importlib.util.find_spec("tilelang")
    assert spec is not None
    assert spec.origin is not None
    return [f"-I{Path(spec.origin).parent / 'src'}"]


class Problem:
    """Integer operands, so that every order of summation gives the same bits."""

    def __init__(self, name: str) -> None:
        random = np.random.default_rng(7)
        mixed = name == "mixed_relu"
        rows, columns, depth = (256, 256, 256) if mixed else (ROWS, COLUMNS, DEPTH)
        left = random.integers(-4, 5, (rows, depth)).astype(np.float32)
        right = random.integers(-4, 5, (depth, columns)).astype(np.float32)
        dtype, layout = ("bf16", "nt") if mixed else name.split("_")
        encode = bf16 if dtype == "bf16" else np.ascontiguousarray
        self.left = encode(left.T if layout[0] == "t" else left)
        self.right = encode(right.T if layout[1] == "t" else right)
        product = left @ right
        self.expected = {"bf16_nt": bf16(product), "mixed_relu": np.maximum(product, 0)}.get(name, product)

    def run(self, twin: Twin, image: bytes) -> np.ndarray:
        result = np.full_like(self.expected, 7)
        twin.run(image, BLOCKS, self.left, self.right, result, entry="main_kernel")
        return result


@pytest.mark.parametrize("name", ["bf16_nt", "bf16_tn", "fp32_nn", "mixed_relu"])
def test_a_lowered_gemm_is_bit_equal_in_every_order_of_pipes(
    twin: Twin, sources: dict[str, str], name: str
) -> None:
    problem = Problem(name)
    image = twin.compile(sources[name], flags=template_flags())
    with schedule("eager"):
        assert np.array_equal(problem.run(twin, image), problem.expected)
    for seed in range(9):
        with schedule("adversarial", seed):
            assert np.array_equal(problem.run(twin, image), problem.expected), seed


def flag_pairs(source: str) -> list[tuple[str, str]]:
    return sorted(set(SYNC.findall(source)))


@pytest.mark.parametrize("name", ["bf16_nt", "mixed_relu"])
def test_a_gemm_without_one_of_its_flag_pairs_is_caught(
    twin: Twin, sources: dict[str, str], name: str
) -> None:
    problem = Problem(name)
    pairs = flag_pairs(sources[name])
    assert len(pairs) >= 4
    for pair in pairs:
        without = SYNC.sub(
            lambda match, pair=pair: ";" if match.groups() == pair else match[0], sources[name]
        )
        image = twin.compile(without, flags=template_flags())
        caught = 0
        for seed in range(18):
            with schedule("adversarial", seed):
                try:
                    caught += not np.array_equal(problem.run(twin, image), problem.expected)
                except DeviceError:
                    caught += 1
        assert caught > 0, pair


def test_a_single_lost_wait_is_an_error_even_in_eager_order(twin: Twin, sources: dict[str, str]) -> None:
    problem = Problem("bf16_nt")
    at = sources["bf16_nt"].rindex("asc_sync_wait(")
    end = sources["bf16_nt"].index(";", at)
    image = twin.compile(sources["bf16_nt"][:at] + sources["bf16_nt"][end:], flags=template_flags())
    with pytest.raises(DeviceError, match="left set at the end"):
        problem.run(twin, image)
