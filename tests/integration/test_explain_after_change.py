"""A kernel is compiled, one thing is changed, the daemon restarts: `kaas explain` names just that thing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.daemon import DaemonProcess

from kaas.compiler.twin.install import ensure_twin_home

OUTSIDE_FAMILY = """
from kaas.kernel_library.families import rmsnorm
from kaas.kernel_library.family import Family

class OutsideSpec(rmsnorm.RmsNormSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="outside"):
    "The same kernel under another roof."

FAMILY = Family(
    name="outside",
    summary="a family of another package",
    spec_type=OutsideSpec,
    parameters=rmsnorm.parameters,
    build=rmsnorm.build,
    module=__name__,
)
"""
SPEC = {"family": "outside", "hidden": 64, "tokens": 8}


def distribution(root: Path, name: str, version: str, entry_points: str = "") -> None:
    """The metadata of an installed distribution, first on the path."""
    info = root / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder on every process's path that holds the outside family."""
    root = tmp_path / "packages"
    root.mkdir()
    (root / "outside_family.py").write_text(OUTSIDE_FAMILY)
    distribution(root, "outside", "1.0", "[kaas.families]\noutside = outside_family:FAMILY\n")
    return root


def change_cann(options: dict[str, str], environ: dict[str, str], packages: Path) -> None:
    home = ensure_twin_home(packages.parent / "newer-toolkit", cann_version="9.3.0")
    environ["ASCEND_HOME_PATH"] = str(home)


def change_sku(options: dict[str, str], environ: dict[str, str], packages: Path) -> None:
    options["soc_name"] = "Ascend950DT_9571"  # as many cores and as much L2 as before: the name alone differs


def change_tilelang(options: dict[str, str], environ: dict[str, str], packages: Path) -> None:
    distribution(packages, "tilelang", "0.1.16")


def change_family(options: dict[str, str], environ: dict[str, str], packages: Path) -> None:
    source = packages / "outside_family.py"
    source.write_text(source.read_text() + "\n# another byte\n")


def change_option(options: dict[str, str], environ: dict[str, str], packages: Path) -> None:
    options["device_options"] = "-O3"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (change_cann, {"toolchain.cann_version"}),
        (change_sku, {"target.soc_name"}),
        (change_tilelang, {"generator.tilelang_version"}),
        (change_family, {"generator.family_digest"}),
        (change_option, {"options"}),
    ],
)
def test_explain_names_exactly_what_changed(
    change: Callable[[dict[str, str], dict[str, str], Path], None],
    expected: set[str],
    packages: Path,
    tmp_path: Path,
) -> None:
    options: dict[str, str] = {"rest_address": "off"}
    environ = {"PYTHONPATH": str(packages)}
    with DaemonProcess(tmp_path / "node", environ=environ, **options) as before:
        first = kaas(before, environ, "get")
    change(options, environ, packages)
    with DaemonProcess(tmp_path / "node", environ=environ, **options) as after:
        explained = kaas(after, environ, "explain")
        assert explained["hit"] is False
        nearest = explained["nearest"][0]
        assert nearest["key"] == first["key"]
        assert {field["path"] for field in nearest["differences"]} == expected
        assert all(name in explained["reason"] for name in expected)


def kaas(daemon: DaemonProcess, environ: dict[str, str], command: str) -> dict:
    finished = subprocess.run(
        [sys.executable, "-m", "kaas.client.cli", command, json.dumps(SPEC), "--json"],
        env={**os.environ, **environ, "KAAS_SOCKET": daemon.socket, "KAAS_STORE": str(daemon.store)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert finished.stdout.strip(), finished.stderr
    answer: dict = json.loads(finished.stdout)
    return answer
