"""What turns specs into Ascend C on this node: TileLang and our own lowering, identified by content.

Nothing is imported: the daemon itself must stay free of TileLang. Names in the digests are relative, so that
the same packages give the same identity under any install prefix.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kaas.compiler.content_digest import FileIdentity, file_identity, files_digest, tree_files
from kaas.proto.errors import ToolchainMissing

LOWERING_MODULES = (
    "kaas.compiler.device_build",
    "kaas.compiler.lowering",
    "kaas.compiler.signature",
    "kaas.kernel_library.family",
    "kaas.kernel_library.spec",
)
"""Our own modules, besides a family's, whose bytes decide what a spec compiles to."""

_NATIVE_SUFFIX = re.compile(r"\.so(\.\d+)*$")
_TEMPLATE_INCLUDE = re.compile(rb'^\s*#\s*include\s*["<](tl_templates/[^">]+)[">]', re.MULTILINE)
_INCLUDED: dict[str, tuple[FileIdentity, list[str]]] = {}
_INSTALL_HINT = "pip install 'ascend-kaas[daemon]'"


@dataclass(frozen=True, kw_only=True)
class GeneratorIdentity:
    """TileLang's version and SHA-256 digests: its code (native and Python), its templates, our lowering."""

    tilelang_version: str
    native_digest: str
    templates_digest: str
    lowering_digest: str


def identify_generator() -> GeneratorIdentity:
    """Identify this interpreter's TileLang. Raises :class:`ToolchainMissing` when it is not installed."""
    root = package_directory("tilelang")
    return GeneratorIdentity(
        tilelang_version=_version("tilelang"),
        native_digest=files_digest(
            generator_files(root, package_directory("tvm_ffi"), package_directory("z3"))
        ),
        templates_digest=templates_digest(),
        lowering_digest=modules_digest(LOWERING_MODULES),
    )


def package_directory(package: str) -> Path:
    """Where a package is installed, without importing it. Raises :class:`ToolchainMissing`."""
    spec = importlib.util.find_spec(package)
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not locations:
        raise ToolchainMissing(
            f"the Python package {package} is not installed", hint=_INSTALL_HINT, missing=package
        )
    return Path(locations[0])


def templates_root() -> Path:
    """The folder that goes into ``-I`` so that ``tl_templates/ascend/...`` is found."""
    return package_directory("tilelang") / "src"


def generator_files(tilelang: Path, tvm_ffi: Path, z3: Path) -> Iterator[tuple[str, Path]]:
    """TileLang's libraries and Python passes, and the libraries that take part in lowering (tvm-ffi, z3)."""
    libraries = (
        ("tilelang/lib", tilelang / "lib"),
        ("tvm_ffi", tvm_ffi),
        ("tvm_ffi/lib", tvm_ffi / "lib"),
        ("z3/lib", z3 / "lib"),
    )
    for name, root in libraries:
        for path in root.glob("*.so*"):
            if path.is_file() and _NATIVE_SUFFIX.search(path.name):
                yield f"{name}/{path.name}", path
    for path in tilelang.rglob("*.py"):
        relative = path.relative_to(tilelang)
        vendored = relative.parts[0] == "3rdparty" and relative.parts[:3] != ("3rdparty", "tvm", "python")
        if not vendored:
            yield f"tilelang/{relative.as_posix()}", path


def templates_digest() -> str:
    """SHA-256 over the template headers as they are on disk now."""
    return files_digest(template_files(package_directory("tilelang")))


def template_files(tilelang: Path) -> list[tuple[str, str]]:
    """The Ascend template headers and every other template that they include, directly or not."""
    source = os.fspath(tilelang / "src")
    ascend = "tl_templates/ascend"
    found: dict[str, str] = {}
    pending = list(tree_files(f"{source}/{ascend}", ascend))
    if not pending:
        raise ToolchainMissing(
            f"{tilelang} holds no Ascend templates",
            hint=f"{_INSTALL_HINT} (TileLang 0.1.15)",
            missing="templates",
        )
    while pending:
        name, path = pending.pop()
        if name in found:
            continue
        found[name] = path
        for included in _included_templates(path):
            other = f"{source}/{included}"
            if Path(other).is_file():
                pending.append((included, other))
    return sorted(found.items())


def _included_templates(path: str) -> list[str]:
    """What a template includes, remembered for as long as it is the same file: every job asks twice."""
    before = file_identity(path)
    remembered = _INCLUDED.get(path)
    if remembered is not None and remembered[0] == before:
        return remembered[1]
    included = [match.decode() for match in _TEMPLATE_INCLUDE.findall(Path(path).read_bytes())]
    if file_identity(path) == before:
        _INCLUDED[path] = (before, included)
    return included


def modules_digest(modules: Iterable[str]) -> str:
    """SHA-256 over the modules' names and sources."""
    total = hashlib.sha256()
    for module in sorted(modules):
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ToolchainMissing(f"module {module} has no source file", hint=_INSTALL_HINT, missing=module)
        content = Path(spec.origin).read_bytes()
        total.update(f"{module}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainMissing(
            f"the Python package {distribution} has no version record",
            hint=_INSTALL_HINT,
            missing=distribution,
        ) from None
