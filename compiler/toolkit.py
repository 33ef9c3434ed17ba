"""Toolkit: find the CANN installation (or the CPU twin) that compiles and launches, and say what it is.

Layouts differ between CANN releases and between the x86_64 and aarch64 packages; the places searched are
those of CANN 8 and 9 installations and those that TileLang 0.1.15 looks into (``BISHENG_HOME``).
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kaas.compiler.cann_version import read_cann_version, version_files
from kaas.compiler.content_digest import file_digest, files_digest, tree_files
from kaas.compiler.tool_environment import tool_environment
from kaas.proto.errors import ToolchainMissing
from kaas.proto.toolchain import Toolchain, ToolchainKind

TWIN_MARKER = "kaas-twin.json"
"""A home that holds this file is a CPU twin, whatever else it looks like."""

SYSTEM_ROOT = Path("/usr/local/Ascend")

_VERSION_DEADLINE_S = 30.0
_ARCHES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """A usable toolkit on this node. ``identity`` holds no path; everything else here is local."""

    home: Path
    kind: ToolchainKind
    identity: Toolchain
    bisheng: Path
    linker: Path
    acl_library: Path
    include_directories: tuple[Path, ...]


def host_arch() -> str:
    """``x86_64`` or ``aarch64``, as CANN spells it in folder names."""
    machine = platform.machine()
    return _ARCHES.get(machine.casefold(), machine)


def find_toolkit(
    environ: Mapping[str, str],
    *,
    allow_twin: bool = True,
    home: Path | None = None,
    system_root: Path = SYSTEM_ROOT,
) -> Toolkit:
    """The toolkit to use: ``home``, ``ASCEND_HOME_PATH``, ``ASCEND_TOOLKIT_HOME``, default roots, the CPU
    twin.

    The first place that is named, or exists, decides: an unusable one raises :class:`ToolchainMissing` saying
    what it lacks and is never skipped in favour of the twin. With ``allow_twin`` false, no CANN is an error
    as well.
    """
    bisheng_home = environ.get("BISHENG_HOME") or None
    if home is not None:
        return read_toolkit(home, bisheng_home=bisheng_home)
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        if value := environ.get(variable):
            return read_toolkit(Path(value), named_by=variable, bisheng_home=bisheng_home)
    for root in default_roots(environ, system_root):
        if root.is_dir():
            return read_toolkit(root, named_by="a default place", bisheng_home=bisheng_home)
    if not allow_twin:
        raise ToolchainMissing(
            "no CANN toolkit was found and the CPU twin is not allowed",
            hint="set ASCEND_HOME_PATH to the toolkit's home",
            searched=[str(root) for root in default_roots(environ, system_root)],
        )
    from kaas.compiler.twin.install import ensure_twin_home

    return read_toolkit(ensure_twin_home())


def default_roots(environ: Mapping[str, str], system_root: Path = SYSTEM_ROOT) -> list[Path]:
    """Where CANN installs itself: system-wide first, then below ``HOME``; the newest of several versions
    first."""
    bases = [system_root]
    if user_home := environ.get("HOME"):
        bases.append(Path(user_home) / "Ascend")
    roots: list[Path] = []
    for base in bases:
        versioned = sorted(base.glob("cann-*"), key=lambda path: _version_order(path.name), reverse=True)
        roots += [base / "cann", *versioned, base / "ascend-toolkit" / "latest"]
    return roots


def _version_order(name: str) -> tuple[tuple[int, ...], bool, str]:
    """Numbers of ``cann-9.2.0-beta.2`` compare as numbers; a release comes after its own previews."""
    label = name.partition("-")[2]
    numbers, _, suffix = label.partition("-")
    return tuple(int(part) for part in numbers.split(".") if part.isdigit()), not suffix, suffix


def read_toolkit(
    home: Path,
    *,
    named_by: str | None = None,
    bisheng_home: str | None = None,
    arch: str | None = None,
    known: Toolchain | None = None,
) -> Toolkit:
    """Look at one home closely. Raises :class:`ToolchainMissing` naming what is missing or does not run.

    ``named_by`` says where the path came from, for messages; ``bisheng_home`` is a separate compiler's home,
    which goes before the toolkit's own as it does in TileLang; ``arch`` defaults to this host's. A compiler
    whose bytes are those of ``known`` is not run again to learn its version.
    """
    arch = arch or host_arch()
    origin = f"{home} (from {named_by})" if named_by else str(home)
    if not home.is_dir():
        raise ToolchainMissing(
            f"{origin} is not a directory", hint="name the home of a CANN toolkit", missing="home"
        )
    kind: ToolchainKind = "twin" if (home / TWIN_MARKER).is_file() else "cann"
    _refuse_other_arch(home, arch, origin)
    compilers = [Path(bisheng_home)] if bisheng_home and kind == "cann" else []
    bisheng = _executable(_tool_places("bisheng", home, arch, compilers), "bisheng", origin)
    linker = _executable(
        [*_linker_places(home, arch, compilers), bisheng.with_name("ld.lld")], "ld.lld", origin
    )
    acl_library = _first_file(
        [home / "lib64" / "libascendcl.so", home / f"{arch}-linux" / "lib64" / "libascendcl.so"],
        "libascendcl.so",
        origin,
    )
    version = read_cann_version(home, arch)
    if version is None:
        looked = ", ".join(str(path.relative_to(home)) for path in version_files(home, arch))
        raise ToolchainMissing(
            f"{origin} has no readable version file (looked for {looked})",
            hint="install the toolkit again, or name another home",
            missing="version",
        )
    includes = tuple(_include_directories(home, arch, bisheng))
    if not includes:
        raise ToolchainMissing(
            f"{origin} has no include directory", hint="install the toolkit", missing="include"
        )
    return Toolkit(
        home=home,
        kind=kind,
        identity=_identify(home, kind, arch, version, bisheng, linker, includes, origin, known),
        bisheng=bisheng,
        linker=linker,
        acl_library=acl_library,
        include_directories=includes,
    )


def _identify(
    home: Path,
    kind: ToolchainKind,
    arch: str,
    version: str,
    bisheng: Path,
    linker: Path,
    includes: Sequence[Path],
    origin: str,
    known: Toolchain | None,
) -> Toolchain:
    try:
        headers = [
            item for number, path in enumerate(includes) for item in tree_files(path, f"include{number}")
        ]
        if kind == "twin":
            # Names the host compiler that the twin was built for.
            headers.append((TWIN_MARKER, f"{home}/{TWIN_MARKER}"))
        digest = file_digest(bisheng)
        same = known if known is not None and known.bisheng_digest == digest else None
        return Toolchain(
            kind=kind,
            cann_version=version,
            compiler_version=same.compiler_version if same else _compiler_version(bisheng, home, kind),
            bisheng_digest=digest,
            linker_digest=file_digest(linker),
            headers_digest=files_digest(headers),
            host_arch=arch,
        )
    except OSError as error:
        raise ToolchainMissing(
            f"{origin} cannot be read: {error.strerror}: {error.filename}",
            hint="check the toolkit's permissions",
            missing=str(error.filename),
        ) from None


def _refuse_other_arch(home: Path, arch: str, origin: str) -> None:
    others = [
        other
        for other in ("x86_64", "aarch64")
        if other != arch and (home / f"{other}-linux" / "lib64").is_dir()
    ]
    if others and not (home / f"{arch}-linux").is_dir():
        raise ToolchainMissing(
            f"{origin} is a toolkit for {others[0]} hosts; this host is {arch}",
            hint=f"install the {arch} package",
            missing=f"{arch}-linux",
        )


def _tool_places(tool: str, home: Path, arch: str, compilers: Sequence[Path]) -> list[Path]:
    folders = [
        *(path / "bin" for path in compilers),
        home / "bin",
        home / "tools" / "bisheng_compiler" / "bin",
        home / f"{arch}-linux" / "bin",
        home / f"{arch}-linux" / "bisheng_compiler" / "bin",
        home / f"{arch}-linux" / "ccec_compiler" / "bin",
        home / "tools" / "ccec_compiler" / "bin",
        home / "compiler" / "ccec_compiler" / "bin",
        home / "compiler" / "bin",
    ]
    return [folder / tool for folder in folders]


def _linker_places(home: Path, arch: str, compilers: Sequence[Path]) -> list[Path]:
    return [*(path / "ld.lld" for path in compilers), *_tool_places("ld.lld", home, arch, compilers)]


def _first_file(places: Sequence[Path], what: str, origin: str) -> Path:
    for path in places:
        if path.is_file():
            return path
    raise ToolchainMissing(
        f"{origin} has no {what}",
        hint="install the complete CANN toolkit, or name another home",
        missing=what,
        searched=[str(path) for path in places],
    )


def _executable(places: Sequence[Path], what: str, origin: str) -> Path:
    path = _first_file(places, what, origin)
    if not os.access(path, os.X_OK):
        raise ToolchainMissing(
            f"{path} is not executable", hint="check the toolkit's permissions", missing=what
        )
    return path


def _include_directories(home: Path, arch: str, bisheng: Path) -> Iterator[Path]:
    """Folders whose headers a device compile may read, each once whatever links lead to it."""
    compiler = bisheng.resolve().parent.parent
    candidates = (
        home / "include",
        home / f"{arch}-linux" / "include",
        home / f"{arch}-linux" / "asc",
        home / f"{arch}-linux" / "ascendc",
        home / f"{arch}-linux" / "tikcpp",
        home / "compiler" / "asc",
        home / "compiler" / "ascendc",
        home / "compiler" / "tikcpp",
        compiler / "lib" / "clang",
    )
    seen: set[str] = set()
    for path in candidates:
        real = os.path.realpath(path)
        if path.is_dir() and real not in seen:
            seen.add(real)
            yield path


def _compiler_version(bisheng: Path, home: Path, kind: ToolchainKind) -> str:
    """First line of ``bisheng --version``; also shows that the compiler runs on this host at all."""
    try:
        done = subprocess.run(
            [str(bisheng), "--version"],
            env=tool_environment(home, kind, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=_VERSION_DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainMissing(
            f"{bisheng} does not run on this host: {error}",
            hint="install the toolkit again",
            missing="bisheng",
        ) from None
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    if done.returncode != 0 or not lines:
        raise ToolchainMissing(
            f"{bisheng} --version failed (status {done.returncode})",
            hint="install the toolkit again",
            missing="bisheng",
            log_tail="\n".join(lines)[-2000:],
        )
    return lines[0].strip()
