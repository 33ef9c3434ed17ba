"""Device detection with real child processes: an ACL library, an npu-smi on PATH, ones that hang or fail."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kaas.compiler import device_probe
from kaas.compiler.device_probe import detect_target, live_target
from kaas.compiler.toolkit import Toolkit, read_toolkit
from kaas.compiler.twin.install import ensure_twin_home
from kaas.kernel_library.targets import target_named
from kaas.proto.errors import UnsupportedTarget


@pytest.fixture(scope="module")
def toolkit() -> Toolkit:
    """The twin's ACL library behind a toolkit that says it is CANN, so that it is asked like a device's."""
    return replace(read_toolkit(ensure_twin_home()), kind="cann")


def without_acl(toolkit: Toolkit, folder: Path) -> Toolkit:
    library = folder / "libascendcl.so"
    library.write_bytes(b"not a library")
    return replace(toolkit, acl_library=library)


def npu_smi(folder: Path, text: str) -> dict[str, str]:
    tool = folder / "npu-smi"
    tool.write_text(f"#!{sys.executable} -S\nimport sys, time\nargs = sys.argv[1:]\n{text}")
    tool.chmod(0o755)
    return {"PATH": str(folder)}


def test_acl_is_asked_in_a_child_process(toolkit):
    asking = """
import os, sys
from dataclasses import replace
from pathlib import Path
from kaas.compiler.device_probe import live_target
from kaas.compiler.toolkit import read_toolkit

toolkit = replace(read_toolkit(Path(sys.argv[1])), kind="cann")
target, source = live_target(toolkit, os.environ)
mapped = str(toolkit.acl_library) in Path("/proc/self/maps").read_text()
print(source, target.npu_arch, target.cube_cores, mapped)
"""
    # In a process of its own, since other tests may have loaded the library into this one.
    answer = subprocess.run(
        [sys.executable, "-c", asking, str(toolkit.home)], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["acl", "dav-3510", "28", "False"]


def test_npu_smi_is_asked_when_acl_cannot_answer(toolkit, tmp_path):
    environ = npu_smi(
        tmp_path,
        "if '-l' in args: print('\\tNPU ID : 5')\n"
        "elif '-c' not in args and args[-1] == '5':\n"
        "    print('\\tChip Name : Ascend950DT\\n\\tNPU Name : 9581')\n",
    )

    assert live_target(without_acl(toolkit, tmp_path), environ) == (
        target_named("Ascend950DT_9581"),
        "npu-smi",
    )


def test_an_older_part_is_recognised_by_npu_smi_and_refused(toolkit, tmp_path):
    environ = npu_smi(
        tmp_path,
        "if '-l' in args: print('\\tNPU ID : 0')\n"
        "elif '-c' in args: print('\\tChip Type : Ascend\\n\\tChip Name : 910B1\\n\\tNPU Name : NA')\n",
    )

    with pytest.raises(UnsupportedTarget, match="Ascend910B1"):
        live_target(without_acl(toolkit, tmp_path), environ)


def test_a_hung_npu_smi_is_given_up(toolkit, tmp_path, monkeypatch):
    monkeypatch.setattr(device_probe, "_NPU_SMI_DEADLINE_S", 0.2)
    environ = npu_smi(tmp_path, "time.sleep(600)\n")

    assert live_target(without_acl(toolkit, tmp_path), environ) == (None, "")


def test_a_node_without_any_device_needs_a_configured_sku(toolkit, tmp_path):
    broken = without_acl(toolkit, tmp_path)
    environ = {"PATH": str(tmp_path)}

    assert detect_target(broken, "Ascend950PR_9579", environ)[1] == "configured"
    with pytest.raises(UnsupportedTarget, match="no Ascend device"):
        detect_target(broken, None, environ)
