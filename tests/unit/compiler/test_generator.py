"""The generator's identity: content and relative names, never a place or a time."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from kaas.compiler.content_digest import files_digest
from kaas.compiler.generator import generator_files, identify_generator, template_files
from kaas.proto.errors import ToolchainMissing


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def site(tmp_path) -> Path:
    """A site-packages folder with packages in the shape of TileLang's wheels."""
    site = tmp_path / "site"
    put(site / "tilelang" / "__init__.py", "version = 1")
    put(site / "tilelang" / "lib" / "libtilelang.so", "native")
    put(site / "tilelang" / "3rdparty" / "tvm" / "python" / "tvm" / "base.py", "tvm")
    put(site / "tilelang" / "3rdparty" / "cutlass" / "python" / "cutlass.py", "cuda only")
    put(site / "tvm_ffi" / "lib" / "libtvm_ffi.so", "ffi")
    put(site / "z3" / "lib" / "libz3.so.4.13", "solver")
    templates = site / "tilelang" / "src" / "tl_templates"
    put(templates / "ascend" / "common.h", '#include "tl_templates/ascend/simd.h"\n#include <acl/acl.h>\n')
    put(templates / "ascend" / "simd.h", "#include <tl_templates/shared/base.h>\n")
    put(templates / "shared" / "base.h", '# include "tl_templates/ascend/common.h"\n')
    put(templates / "cuda" / "gemm.h", "cuda")
    return site


def native(site: Path) -> str:
    return files_digest(generator_files(site / "tilelang", site / "tvm_ffi", site / "z3"))


def templates(site: Path) -> str:
    return files_digest(template_files(site / "tilelang"))


def test_the_same_packages_elsewhere_and_younger_are_the_same(site, tmp_path):
    other = shutil.copytree(site, tmp_path / "opt" / "venv" / "lib")
    for path in other.rglob("*"):
        os.utime(path, (1, 1))

    assert native(site) == native(other)
    assert templates(site) == templates(other)


@pytest.mark.parametrize(
    "name",
    [
        "tilelang/__init__.py",
        "tilelang/lib/libtilelang.so",
        "tilelang/3rdparty/tvm/python/tvm/base.py",
        "tvm_ffi/lib/libtvm_ffi.so",
        "z3/lib/libz3.so.4.13",
    ],
)
def test_whatever_takes_part_in_lowering_counts(site, name):
    before = native(site), templates(site)

    (site / name).write_text("changed")

    assert native(site) != before[0]
    assert templates(site) == before[1]


def test_templates_count_with_what_they_include_and_nothing_else(site):
    assert [name for name, _ in template_files(site / "tilelang")] == [
        "tl_templates/ascend/common.h",
        "tl_templates/ascend/simd.h",
        "tl_templates/shared/base.h",
    ]
    before = templates(site)
    put(site / "tilelang" / "src" / "tl_templates" / "cuda" / "gemm.h", "other")
    assert templates(site) == before
    put(site / "tilelang" / "src" / "tl_templates" / "shared" / "base.h", "other")
    assert templates(site) != before


def test_a_tilelang_without_ascend_templates_is_refused(site):
    shutil.rmtree(site / "tilelang" / "src" / "tl_templates" / "ascend")

    with pytest.raises(ToolchainMissing, match="templates"):
        template_files(site / "tilelang")


def test_identifying_this_interpreters_tilelang_does_not_import_it():
    was_imported = "tilelang" in sys.modules

    identity = identify_generator()

    assert identity.tilelang_version
    assert len({identity.native_digest, identity.templates_digest, identity.lowering_digest}) == 3
    assert ("tilelang" in sys.modules) == was_imported
    assert identify_generator() == identity
