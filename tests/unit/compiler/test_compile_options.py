"""Effective options: complete, without a path, and split again for the two tools."""

from __future__ import annotations

from pathlib import Path

from kaas.compiler.compile_options import effective_options, split_options
from kaas.kernel_library.targets import target_named

TARGET = target_named("Ascend950PR_9579")


def test_options_hold_no_path_and_name_the_arch():
    options = effective_options(TARGET, ["-DEXTRA=1"])

    assert not [option for option in options if "/" in option]
    assert "--npu-arch=dav-3510" in options
    assert "-DEXTRA=1" in options


def test_split_options_fill_in_the_templates_folder():
    compile_options, link_options = split_options(effective_options(TARGET), Path("/opt/tilelang/src"))

    assert "-I/opt/tilelang/src" in compile_options
    assert compile_options[-1] == "--cce-aicore-only"
    assert link_options == ["-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file"]
