"""A CANN-shaped home whose tools do what a test stages: compile, fail, hang, crash, eat memory, wait."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from kaas.compiler.toolkit import Toolkit, read_toolkit

_TOOL = """#!{python} -S
import hashlib, os, signal, subprocess, sys, time
from pathlib import Path

home = Path(__file__).resolve().parent.parent
tool = Path(__file__).name
if "--version" in sys.argv:
    print("bisheng of a test, version 1")
    sys.exit(0)
behaviour = (home / "behaviour").read_text().strip() if tool == "bisheng" else "compile"
starts = home / "starts"
number = len(list(starts.iterdir()))
(starts / f"{{tool}}-{{os.getpid()}}").write_text(" ".join(sys.argv))
(home / "environment").write_text("\\n".join(sorted(os.environ)))
output = Path(sys.argv[sys.argv.index("-o") + 1])


def note(name, pid):
    (home / "pids" / name).write_text(str(pid))


def spawn(code, **how):
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.DEVNULL, **how)
    return child.pid


def compile():
    source = Path(next(a for a in sys.argv if a.endswith((".asc", ".rel.o")))).read_bytes()
    output.write_bytes(b"IMAGE " + source[:64])


if behaviour == "compile":
    compile()
elif behaviour == "differ":
    # Another build every time, which both the image and the log name.
    build = os.urandom(16).hex()
    print("build", build)
    output.write_bytes(b"BUILD " + build.encode())
elif behaviour == "digest":
    source = Path(next(a for a in sys.argv if a.endswith(".asc"))).read_bytes()
    output.write_bytes(hashlib.sha256(source).hexdigest().encode())
elif behaviour.startswith("hold "):
    # Takes so many MiB, waits at the barrier, keeps them a little longer; writes down from when to when.
    hoard = b"x" * (int(behaviour.split()[1]) << 20)
    began = time.monotonic()
    note(f"waiting-{{os.getpid()}}", os.getpid())
    while not (home / "go").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    compile()
    (home / "spans" / str(os.getpid())).write_text(f"{{began}} {{time.monotonic()}}")
elif behaviour == "hang":
    note("compiler", os.getpid())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the children inherit that
    note("child", spawn("import time; time.sleep(600)"))
    note("escaped", spawn("import time; time.sleep(600)", start_new_session=True))
    time.sleep(600)
elif behaviour == "dangle":
    # A daemon that outlives a successful compile: its parent is gone, it has a session of its own.
    middle = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-S', '-c', " \\
        "'import time; time.sleep(600)'], start_new_session=True, stdout=subprocess.DEVNULL).pid)"
    note("escaped", int(subprocess.check_output([sys.executable, "-S", "-c", middle])))
    compile()
elif behaviour == "memory":
    note("compiler", os.getpid())
    hoard = []
    while True:
        hoard.append(b"x" * (8 << 20))
        time.sleep(0.005)
elif behaviour == "child-memory":
    eat = "hoard = []\\nwhile True: hoard.append(b'x' * (8 << 20)); __import__('time').sleep(0.005)"
    note("child", spawn(eat, start_new_session=True))
    time.sleep(600)
elif behaviour == "empty":
    output.write_bytes(b"")
elif behaviour == "nothing":
    pass
elif behaviour == "directory":
    output.mkdir()
elif behaviour == "crash" or (behaviour == "crash-once" and number == 0):
    os.kill(os.getpid(), signal.SIGSEGV)
elif behaviour == "crash-once":
    compile()
elif behaviour == "reject":
    sys.stderr.write("kernel.asc:3:7: error: no such intrinsic\\n1 error generated.\\n")
    sys.exit(1)
elif behaviour == "chatter":
    line = b"warning: " + b"y" * 1000 + b"\\n"
    for _ in range(20000):
        os.write(2, line)
    os.write(2, b"the last words\\n")
    sys.exit(1)
elif behaviour == "barrier":
    note(f"waiting-{{os.getpid()}}", os.getpid())
    while not (home / "go").exists():
        time.sleep(0.01)
    compile()
"""


class FakeToolkit:
    """A toolkit home below ``home``. Set :attr:`behaviour` before a compile; look at :meth:`starts` after."""

    def __init__(self, home: Path, behaviour: str = "compile", *, version: str = "9.2.0") -> None:
        self.home = home
        arch = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
        for folder in ("bin", "lib64", "include", "starts", "pids", "spans", f"{arch}-linux"):
            (home / folder).mkdir(parents=True)
        for tool in ("bisheng", "ld.lld"):
            path = home / "bin" / tool
            path.write_text(_TOOL.format(python=sys.executable))
            path.chmod(0o755)
        (home / "lib64" / "libascendcl.so").write_bytes(b"not a library")
        (home / "include" / "asc.h").write_text("// intrinsics\n")
        (home / f"{arch}-linux" / "ascend_toolkit_install.info").write_text(f"version={version}\n")
        self.behaviour = behaviour

    @classmethod
    def existing(cls, home: Path) -> FakeToolkit:
        """One that was made before, as it was left."""
        toolkit = cls.__new__(cls)
        toolkit.home = home
        return toolkit

    @property
    def behaviour(self) -> str:
        return (self.home / "behaviour").read_text()

    @behaviour.setter
    def behaviour(self, value: str) -> None:
        (self.home / "behaviour").write_text(value)

    def read(self) -> Toolkit:
        return read_toolkit(self.home)

    def starts(self) -> list[str]:
        """Command lines of the device compiler so far."""
        return [path.read_text() for path in sorted((self.home / "starts").glob("bisheng-*"))]

    def pid(self, name: str) -> int | None:
        """A process that the compiler made note of, once it has."""
        try:
            return int((self.home / "pids" / name).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def waiting(self) -> int:
        """How many compilers stand at the barrier or have passed it."""
        return len(list((self.home / "pids").glob("waiting-*")))

    def most_at_once(self) -> int:
        """How many compilers that hold memory ran at one time."""
        spans = [tuple(map(float, path.read_text().split())) for path in (self.home / "spans").iterdir()]
        return max(sum(began <= moment < ended for began, ended in spans) for moment, _ in spans)

    def open_barrier(self) -> None:
        (self.home / "go").touch()

    def environment(self) -> list[str]:
        """Names of the variables that the compiler saw."""
        return (self.home / "environment").read_text().splitlines()


def python_path(*folders: Path) -> str:
    """PYTHONPATH with these folders before what it holds already."""
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([before] if before else [])])


def families_path(folder: Path) -> Path:
    """A folder for PYTHONPATH that adds the ``staged`` family, as an installed package would."""
    package = folder / "kaas_staged-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: kaas-staged\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[kaas.families]\nstaged = kaas_staged:FAMILY\n")
    source = Path(__file__).with_name("staged_family.py").read_text()
    (folder / "kaas_staged.py").write_text(source)
    return folder
