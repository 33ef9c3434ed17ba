"""Import directions hold, and the check that says so would notice if they did not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("proto", "kernel_library", "compiler", "cache", "server", "client")
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(directory / "src"), "COLUMNS": "200"}
    command = [sys.executable, "-c", LINT, "--no-cache"]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The Python sources alone, laid out like the repository."""
    for name in PACKAGES:
        shutil.copytree(
            REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "toolkit")
        )
    shutil.copytree(
        REPOSITORY / "src", tmp_path / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info")
    )
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_point_one_way_only() -> None:
    outcome = lint(REPOSITORY)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "0 broken" in outcome.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("cache/layout.py", "import kaas.kernel_library.spec", "cache knows no kernels"),
        ("proto/canonical.py", "import kaas.cache.layout", "server -> cache -> proto"),
        ("compiler/job.py", "import kaas.cache.store", "compiler and cache never see each other"),
        ("client/handle.py", "import diskcache", "only cache opens the index"),
    ],
)
def test_an_upward_import_is_noticed(copy: Path, module: str, line: str, contract: str) -> None:
    path = copy / module
    path.write_text(f"{path.read_text()}\n{line}\n")
    outcome = lint(copy)
    assert outcome.returncode != 0
    assert "BROKEN" in outcome.stdout
    broken = [text for text in outcome.stdout.splitlines() if "BROKEN" in text]
    assert any(contract in text for text in broken), outcome.stdout
