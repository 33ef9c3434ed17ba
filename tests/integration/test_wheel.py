"""The wheel: everything a node needs, under one name."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("proto", "kernel_library", "compiler", "cache", "server", "client")
TOP_LEVEL_FILES = ("pyproject.toml", "README.md", "LICENSE")
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "build", ".*")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built in a copy, so that nothing is left in the work tree and nothing left there gets in."""
    copy = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(REPOSITORY / name, copy / name, ignore=IGNORED)
    shutil.copytree(REPOSITORY / "src", copy / "src", symlinks=True, ignore=IGNORED)
    for name in TOP_LEVEL_FILES:
        shutil.copy(REPOSITORY / name, copy)
    built = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(built), str(copy)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout[-3000:] + outcome.stderr[-3000:]
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


def is_left_over(path: Path) -> bool:
    """Caches of interpreters and linters."""
    return any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(REPOSITORY).parts)


def sources(*suffixes: str) -> set[str]:
    found = {"kaas/__init__.py", "kaas/py.typed"}
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*"):
            if path.is_file() and path.suffix in suffixes and not is_left_over(path):
                found.add(f"kaas/{path.relative_to(REPOSITORY)}")
    return found


def test_every_module_and_stub_is_in_it(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    wanted = sources(".py", ".pyi", ".proto")
    assert len(wanted) > 60
    assert wanted - names == set()


def test_the_whole_twin_toolkit_is_in_it(wheel: zipfile.ZipFile) -> None:
    toolkit = REPOSITORY / "compiler" / "twin" / "toolkit"
    wanted = {
        f"kaas/{path.relative_to(REPOSITORY)}"
        for path in toolkit.rglob("*")
        if path.is_file() and not is_left_over(path)
    }
    assert any(name.endswith(".h") for name in wanted)
    assert wanted - set(wheel.namelist()) == set()


def test_one_name_lands_in_site_packages(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    (metadata,) = top - {"kaas"}
    assert metadata.startswith("ascend_kaas-")
    assert metadata.endswith(".dist-info")
    (listed,) = [name for name in wheel.namelist() if name.endswith("top_level.txt")]
    assert wheel.read(listed).decode().split() == ["kaas"]


def test_no_tests_or_left_overs_are_in_it(wheel: zipfile.ZipFile) -> None:
    assert not [name for name in wheel.namelist() if "tests/" in name or name.endswith((".pyc", ".so"))]


def test_the_command_and_the_licence_are_in_it(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
    assert "kaas = kaas.client.cli:main" in wheel.read(entry_points).decode()
    assert any(name.endswith("/LICENSE") for name in names)
