"""Finding a CANN home: its layouts, its version files, and what is said when something is missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kaas.compiler import toolkit as toolkit_module
from kaas.compiler.cann_version import read_cann_version
from kaas.compiler.toolkit import default_roots, find_toolkit, host_arch, read_toolkit
from kaas.proto.errors import ToolchainMissing

ARCHES = ("x86_64", "aarch64")


@pytest.fixture(autouse=True)
def _compilers_are_not_run(monkeypatch):
    monkeypatch.setattr(toolkit_module, "_compiler_version", lambda bisheng, home, kind: "clang 15.0.5")


def put(path: Path, text: str = "", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def cann_home(
    home: Path,
    *,
    arch: str | None = None,
    version: str = "9.2.0",
    bin_folder: str = "bin",
    lib: str = "lib64",
) -> Path:
    arch = arch or host_arch()
    put(home / bin_folder / "bisheng", "compiler", 0o755)
    put(home / bin_folder / "ld.lld", "linker", 0o755)
    put(home / lib / "libascendcl.so", "acl")
    put(home / f"{arch}-linux" / "include" / "acl" / "acl.h", "int acl;")
    put(home / f"{arch}-linux" / "ascend_toolkit_install.info", f"package_name=toolkit\nversion={version}\n")
    return home


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    "bin_folder",
    ["bin", "tools/bisheng_compiler/bin", "{arch}-linux/ccec_compiler/bin", "compiler/ccec_compiler/bin"],
)
def test_known_layouts_of_both_architectures_are_understood(tmp_path, arch, bin_folder):
    folder = bin_folder.format(arch=arch)
    home = cann_home(tmp_path / "cann", arch=arch, bin_folder=folder, lib=f"{arch}-linux/lib64")

    toolkit = read_toolkit(home, arch=arch)

    assert toolkit.kind == "cann"
    assert toolkit.bisheng == home / folder / "bisheng"
    assert toolkit.linker == home / folder / "ld.lld"
    assert toolkit.acl_library == home / f"{arch}-linux" / "lib64" / "libascendcl.so"
    assert toolkit.identity.host_arch == arch
    assert toolkit.identity.cann_version == "9.2.0"


def test_a_toolkit_for_the_other_architecture_is_named_as_such(tmp_path):
    home = cann_home(tmp_path / "cann", arch="aarch64", lib="aarch64-linux/lib64")

    with pytest.raises(ToolchainMissing, match="aarch64 hosts; this host is x86_64"):
        read_toolkit(home, arch="x86_64")


@pytest.mark.parametrize(
    ("files", "version"),
    [
        (
            {"x86_64-linux/ascend_toolkit_install.info": "version=9.2.0-beta.2\n", "version.cfg": "x"},
            "9.2.0-beta.2",
        ),
        ({"x86_64-linux/ascend_ops_install.info": "arch=x86_64\nversion=9.1.0\n"}, "9.1.0"),
        ({"compiler/version.info": "Version=8.2.RC1.alpha003\n"}, "8.2.RC1.alpha003"),
        ({"version.cfg": "# version: 1.0\nruntime_running_version=[7.7.0.1.238:8.1.RC1]\n"}, "8.1.RC1"),
        ({"version.cfg": "toolkit_running_version=[8.3.RC2]\n"}, "8.3.RC2"),
        (
            {
                "x86_64-linux/ascend_toolkit_install.info": "version=9.2.0\n",
                "compiler/version.info": "Version=9.0.T501\n",
            },
            "9.2.0",
        ),
        (
            {
                "x86_64-linux/ascend_toolkit_install.info": "version=\n",
                "compiler/version.info": "Version=9.0.T501\n",
            },
            "9.0.T501",
        ),
        ({"version.cfg": "nothing here\n"}, None),
    ],
)
def test_version_files_are_read_in_order(tmp_path, files, version):
    for name, text in files.items():
        put(tmp_path / name, text)

    assert read_cann_version(tmp_path, "x86_64") == version


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("bin/bisheng", "bisheng"),
        ("bin/ld.lld", "ld.lld"),
        ("lib64/libascendcl.so", "libascendcl.so"),
        (f"{host_arch()}-linux/ascend_toolkit_install.info", "version"),
        (f"{host_arch()}-linux/include", "include"),
    ],
)
@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"])
def test_a_broken_named_home_says_what_is_missing_and_never_becomes_the_twin(tmp_path, variable, lost, named):
    home = cann_home(tmp_path / "cann")
    victim = home / lost
    shutil.rmtree(victim) if victim.is_dir() else victim.unlink()

    with pytest.raises(ToolchainMissing, match=variable) as caught:
        find_toolkit({variable: str(home)}, system_root=tmp_path / "none")

    assert caught.value.details["missing"] == named


def test_a_named_home_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(ToolchainMissing, match="not a directory"):
        find_toolkit({"ASCEND_HOME_PATH": str(tmp_path / "gone")}, system_root=tmp_path / "none")


def test_a_compiler_that_may_not_be_executed_is_an_error(tmp_path):
    home = cann_home(tmp_path / "cann")
    (home / "bin" / "bisheng").chmod(0o644)

    with pytest.raises(ToolchainMissing, match="not executable"):
        read_toolkit(home)


def test_explicit_home_then_variables_then_default_roots(tmp_path):
    system = tmp_path / "Ascend"
    homes = {
        name: cann_home(tmp_path / name, version=f"9.{number}.0")
        for number, name in enumerate(("explicit", "home_path", "toolkit_home"))
    }
    cann_home(system / "cann", version="8.5.0")
    environ = {
        "ASCEND_HOME_PATH": str(homes["home_path"]),
        "ASCEND_TOOLKIT_HOME": str(homes["toolkit_home"]),
        "HOME": str(tmp_path),
    }

    def version(environ, **options):
        return find_toolkit(environ, system_root=system, **options).identity.cann_version

    assert version(environ, home=homes["explicit"]) == "9.0.0"
    assert version(environ) == "9.1.0"
    assert version({**environ, "ASCEND_HOME_PATH": ""}) == "9.2.0"
    assert version({"HOME": str(tmp_path / "nobody")}) == "8.5.0"


def test_default_roots_prefer_the_newest_version_and_a_release_over_its_previews(tmp_path):
    for name in ("cann-9.10.0", "cann-9.2.0", "cann-9.2.0-beta.2"):
        (tmp_path / name).mkdir()

    names = [path.relative_to(tmp_path).as_posix() for path in default_roots({}, tmp_path)]

    assert names == ["cann", "cann-9.10.0", "cann-9.2.0", "cann-9.2.0-beta.2", "ascend-toolkit/latest"]


def test_without_cann_and_without_the_twin_it_says_where_it_looked(tmp_path):
    with pytest.raises(ToolchainMissing) as caught:
        find_toolkit({"HOME": str(tmp_path)}, allow_twin=False, system_root=tmp_path / "none")

    assert str(tmp_path / "none" / "cann") in caught.value.details["searched"]
    assert str(tmp_path / "Ascend" / "cann") in caught.value.details["searched"]


def test_a_separate_compiler_home_goes_first_and_its_headers_count(tmp_path):
    home = cann_home(tmp_path / "cann")
    other = tmp_path / "bisheng"
    put(other / "bin" / "bisheng", "another compiler", 0o755)
    put(other / "bin" / "ld.lld", "another linker", 0o755)
    header = put(other / "lib" / "clang" / "15" / "include" / "cce.h", "one")

    toolkit = find_toolkit({"ASCEND_HOME_PATH": str(home), "BISHENG_HOME": str(other)})
    before = toolkit.identity
    header.write_text("another")
    after = find_toolkit({"ASCEND_HOME_PATH": str(home), "BISHENG_HOME": str(other)}).identity

    assert toolkit.bisheng == other / "bin" / "bisheng"
    assert toolkit.linker == other / "bin" / "ld.lld"
    assert before.headers_digest != after.headers_digest
    assert before.bisheng_digest != read_toolkit(home).identity.bisheng_digest


def test_equal_toolkits_at_different_places_are_equal(tmp_path):
    first = cann_home(tmp_path / "here" / "cann")
    second = shutil.copytree(first, tmp_path / "far" / "away" / "cann-9")

    assert read_toolkit(first).identity == read_toolkit(second).identity


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ("bin/bisheng", "bisheng_digest"),
        ("bin/ld.lld", "linker_digest"),
        (f"{host_arch()}-linux/include/acl/acl.h", "headers_digest"),
    ],
)
def test_changed_bytes_of_the_same_size_and_time_change_exactly_their_digest(tmp_path, changed, field):
    home = cann_home(tmp_path / "cann")
    before = read_toolkit(home).identity
    path = home / changed
    status = path.stat()

    path.write_text(path.read_text().swapcase())
    path.chmod(status.st_mode)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = read_toolkit(home).identity

    differing = [name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name)]
    assert differing == [field]


def test_an_added_header_changes_the_identity(tmp_path):
    home = cann_home(tmp_path / "cann")
    before = read_toolkit(home).identity

    put(home / f"{host_arch()}-linux" / "include" / "shadow.h", "")

    assert read_toolkit(home).identity.headers_digest != before.headers_digest


def test_include_folders_that_are_links_to_each_other_count_once(tmp_path):
    home = cann_home(tmp_path / "cann")
    (home / "include").symlink_to(home / f"{host_arch()}-linux" / "include")
    (home / "include" / "loop").symlink_to(home / "include")

    assert read_toolkit(home).include_directories == (home / "include",)
