"""What compilers and workers see of the caller's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaas.compiler.tool_environment import tool_environment, worker_environment

HOSTILE = {
    "CPATH": "/evil",
    "CPLUS_INCLUDE_PATH": "/evil",
    "CCC_OVERRIDE_OPTIONS": "+-DX",
    "LD_PRELOAD": "/evil.so",
    "TL_TEMPLATE_PATH": "/evil",
    "TILELANG_DEFAULT_TARGET": "cuda",
    "ASCEND_NPU_ARCH": "dav-2201",
    "PATH": "/caller/bin",
    "PYTHONPATH": "/caller/lib",
}


@pytest.mark.parametrize("kind", ["cann", "twin"])
def test_compilers_get_nothing_that_could_change_a_binary_behind_the_key(kind):
    seen = tool_environment(Path("/cann"), kind, HOSTILE, Path("/scratch"))

    assert not seen.keys() & (HOSTILE.keys() - {"PATH"})
    assert ("/caller/bin" in seen["PATH"]) == (kind == "twin")
    assert seen["HOME"] == seen["TMPDIR"] == "/scratch"


def test_workers_get_what_python_needs_and_no_tilelang_setting():
    seen = worker_environment(HOSTILE, Path("/scratch"))

    assert seen["PYTHONPATH"] == "/caller/lib"
    assert not seen.keys() & (HOSTILE.keys() - {"PATH", "PYTHONPATH"})
    assert seen["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert seen["TILELANG_DISABLE_CACHE"] == "1"
