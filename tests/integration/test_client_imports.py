"""What importing kaas loads: the modules are the budget, since time cannot be asserted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import kaas

HEAVY = {
    *("torch", "tilelang", "tvm", "numpy", "grpc", "google", "fastapi", "pydantic", "diskcache", "sqlite3"),
    *(
        "asyncio",
        "concurrent",
        "multiprocessing",
        "subprocess",
        "socket",
        "http",
        "ssl",
        "ctypes",
        "tempfile",
    ),
    *("rich", "typer", "click", "yaml", "argparse", "difflib", "logging", "importlib.metadata"),
}


def modules_after(code: str) -> set[str]:
    """Modules that ``code`` loads in a fresh interpreter, beyond those of msgspec and of the interpreter."""
    script = (
        "import sys, json, msgspec, msgspec.json\n"
        "before = set(sys.modules)\n"
        f"{code}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return set(json.loads(output))


def heavy(modules: set[str]) -> set[str]:
    return {name for name in HEAVY if any(m == name or m.startswith(f"{name}.") for m in modules)}


def test_importing_kaas_loads_nothing_else() -> None:
    assert modules_after("import kaas") <= {"kaas", "__future__"}


def test_what_a_rank_imports_is_light() -> None:
    assert not heavy(
        modules_after("from kaas import get_kernel, GemmSpec, RmsNormSpec, KernelSpec, KaasError")
    )


def test_a_store_hit_loads_no_transport() -> None:
    loaded = heavy(modules_after("import kaas.client.kernel_client, kaas.client.handle, kaas.client.device"))
    assert not loaded


def test_a_miss_without_a_daemon_loads_no_grpc() -> None:
    code = (
        "import os\n"
        "os.environ['KAAS_STORE'] = os.environ['KAAS_SOCKET'] = '/nonexistent/x'\n"
        "from kaas import get_kernel, GemmSpec, DaemonUnavailable\n"
        "try:\n    get_kernel(GemmSpec(n=16, k=16), timeout=0)\n"
        "except DaemonUnavailable:\n    pass\n"
    )
    assert not heavy(modules_after(code)) & {"grpc", "google", "torch", "asyncio"}


@pytest.mark.parametrize("name", [*kaas.__all__, "__version__"])
def test_every_public_name_exists(name: str) -> None:
    assert getattr(kaas, name)
    assert name in dir(kaas)


def test_the_public_names_are_exactly_what_can_be_loaded() -> None:
    assert sorted(kaas.__all__) == sorted(kaas._MODULES)


def test_every_error_class_is_public() -> None:
    from kaas.proto import errors

    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert classes <= set(kaas.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        kaas.no_such_name  # noqa: B018
