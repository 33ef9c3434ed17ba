"""Build a home of the CPU twin toolkit: a folder laid out like a CANN home, made for this host."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import platformdirs

from kaas.proto.errors import KaasError, ToolchainMissing

MARKER = "kaas-twin.json"
DEFAULT_CANN_VERSION = "9.2.0"

_TOOLKIT = Path(__file__).with_name("toolkit")
# Optimised, but plain IEEE arithmetic and wrapping integers: the twin must not flush, reorder or contract.
_COMPILE = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-ffp-contract=off",
    "-fnon-call-exceptions",
    "-fvisibility=default",
)
_COMPILE_TIMEOUT_S = 300

INSTALL_INFO = "*-linux/ascend_toolkit_install.info"
"""The version file, by architecture."""


def ensure_twin_home(destination: Path | None = None, *, cann_version: str = DEFAULT_CANN_VERSION) -> Path:
    """The twin's home, built if it is not there yet (about 15 s once, then immediate).

    Without ``destination`` the home lies under ``KAAS_TWIN_ROOT`` (default: the user's cache directory),
    named by a digest of the toolkit's sources and the host compiler's version, and by ``cann_version``, which
    is what the version file and the runtime say; compiler and headers are the same for all. Safe when
    several processes ask at once. Raises ToolchainMissing when g++ is missing or cannot build the toolkit,
    or when ``destination`` holds something else.
    """
    compiler = _host_compiler()
    digest = _digest(compiler)
    home = Path(destination) if destination is not None else _root() / f"{digest}-{cann_version}"
    if _is_built(home, digest, cann_version):
        return home
    if home.exists() and not (home / MARKER).exists() and any(home.iterdir()):
        raise ToolchainMissing(
            f"{home} is not empty and holds no CPU twin", hint="name a new or empty folder as the destination"
        )
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with _one_builder(home.parent / f".{home.name}.lock"):
            if not _is_built(home, digest, cann_version):
                _build(home, compiler, digest, cann_version)
    except OSError as error:
        raise ToolchainMissing(
            f"cannot build the CPU twin at {home}: {error}", hint="set KAAS_TWIN_ROOT to a writable folder"
        ) from error
    return home


def _root() -> Path:
    root = os.environ.get("KAAS_TWIN_ROOT")
    return Path(root) if root else Path(platformdirs.user_cache_dir("kaas")) / "twin"


def _host_compiler() -> str:
    found = shutil.which("g++")
    if found is None:
        raise ToolchainMissing(
            "the CPU twin needs the host compiler g++, which is not on PATH",
            hint="install g++ 12 or newer, or name a CANN toolkit in ASCEND_HOME_PATH",
        )
    return found


def _sources() -> Iterator[tuple[str, bytes]]:
    for path in sorted(_TOOLKIT.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(_TOOLKIT).as_posix(), path.read_bytes()


def _digest(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False, timeout=60).stdout
    digest = hashlib.sha256()
    for part in (version, platform.machine().encode(), _COMPILE_TEXT):
        digest.update(len(part).to_bytes(8, "big") + part)
    for name, content in _sources():
        for part in (name.encode(), content):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:32]


_COMPILE_TEXT = " ".join(_COMPILE).encode()


def _built_digest(home: Path) -> str | None:
    try:
        marker = json.loads((home / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(marker.get("digest")) if isinstance(marker, dict) else None


def _is_built(home: Path, digest: str, cann_version: str) -> bool:
    if _built_digest(home) != digest:
        return False
    info = next(home.glob(INSTALL_INFO), None)
    return info is not None and f"version={cann_version}\n" in info.read_text(encoding="utf-8")


@contextlib.contextmanager
def _one_builder(lock: Path) -> Iterator[None]:
    """Keeps other processes from compiling the same toolkit meanwhile; the rename alone makes it correct."""
    with lock.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(home: Path, compiler: str, digest: str, cann_version: str) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{home.name}.building-", dir=home.parent))
    try:
        work.chmod(0o755)
        _fill(work, compiler, digest, cann_version)
        _publish(work, home, lambda: _is_built(home, digest, cann_version))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _fill(work: Path, compiler: str, digest: str, cann_version: str) -> None:
    for name, content in _sources():
        if name.startswith(("bin/", "include/")):
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o755 if name.startswith("bin/") else 0o644)
    engine = f"libkaas_twin_{digest}.so"
    (work / "lib64").mkdir()
    _build_libraries(work, compiler, engine, digest, cann_version)
    machine = platform.machine()
    arch = {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    info = work / INSTALL_INFO.replace("*", arch)
    info.parent.mkdir()
    info.write_text(
        f"package_name=Ascend-cann-toolkit\nversion={cann_version}\narch={arch}\nos=linux\n", encoding="utf-8"
    )
    marker = {
        "kind": "twin",
        "digest": digest,
        "engine": engine,
        "machine": machine,
        "notice": "a functional CPU twin; it makes no claim about time, power or silicon",
    }
    (work / MARKER).write_text(json.dumps(marker, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _build_libraries(work: Path, compiler: str, engine: str, digest: str, cann_version: str) -> None:
    source = _TOOLKIT / "src"
    objects = work / "objects"
    objects.mkdir()
    flags = [
        *_COMPILE,
        f"-I{work / 'include'}",
        f"-I{source}",
        f'-DKAAS_TWIN_DIGEST="{digest}"',
        f'-DKAAS_TWIN_CANN_VERSION="{cann_version}"',
        f"-ffile-prefix-map={work}=twin",
        f"-ffile-prefix-map={source}=twin/src",
    ]

    def compile_one(unit: Path) -> Path:
        output = objects / (unit.stem + ".o")
        _run([compiler, *flags, "-c", str(unit), "-o", str(output)])
        return output

    units = sorted(source.glob("*.cpp"))
    with ThreadPoolExecutor(max_workers=max(1, min(4, os.cpu_count() or 1))) as pool:
        built = list(pool.map(compile_one, units))
    runtime = [str(path) for path in built if path.stem == "acl"]
    core = [str(path) for path in built if path.stem != "acl"]
    link = [compiler, "-shared", "-Wl,--build-id=none", "-Wl,-z,defs", "-pthread"]
    engine_path = work / "lib64" / engine
    _run([*link, f"-Wl,-soname,{engine}", *core, "-ldl", "-o", str(engine_path)])
    _run(
        [
            *link,
            "-Wl,-soname,libascendcl.so",
            "-Wl,-rpath,$ORIGIN",
            *runtime,
            str(engine_path),
            "-o",
            str(work / "lib64" / "libascendcl.so"),
        ]
    )
    shutil.rmtree(objects)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMPILE_TIMEOUT_S, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise ToolchainMissing(f"g++ did not build the CPU twin within {_COMPILE_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise ToolchainMissing(
            "g++ could not build the CPU twin's libraries",
            hint="g++ 12 or newer is needed",
            log_tail=done.stderr[-4000:],
        )


def _publish(work: Path, home: Path, is_done: Callable[[], bool]) -> None:
    """Renames the finished folder into place; losing a race to an equal one is success."""
    stale: Path | None = None
    if home.exists() and not is_done():
        stale = home.with_name(f".{home.name}.stale-{os.getpid()}")
        home.rename(stale)
    try:
        work.rename(home)
    except OSError:
        if not is_done():
            raise
    finally:
        if stale is not None:
            shutil.rmtree(stale, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m kaas.compiler.twin.install``: build the home and print its path."""
    parser = argparse.ArgumentParser(
        prog="python -m kaas.compiler.twin.install", description="Build a home of the CPU twin toolkit."
    )
    parser.add_argument("--destination", type=Path, help="folder to build (default: the user's cache)")
    parser.add_argument("--cann-version", default=DEFAULT_CANN_VERSION, help="CANN version to stand for")
    options = parser.parse_args(arguments)
    try:
        home = ensure_twin_home(options.destination, cann_version=options.cann_version)
    except KaasError as error:
        log = error.details.get("log_tail")
        raise SystemExit(f"{error}\n{log}" if log else str(error)) from None
    print(home)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
