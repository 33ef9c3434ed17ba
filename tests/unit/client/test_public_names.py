"""Public names are loaded when first used, without a pass of the cyclic garbage collector."""

from __future__ import annotations

import subprocess
import sys

import pytest

_IMPORT = """
import gc

gc.set_threshold(50, 1, 1)  # any import of weight would set off a pass
passes = []
gc.callbacks.append(lambda phase, facts: passes.append(phase))
{before}
import kaas

passes.clear()
value = kaas.{name}
print(len(passes), gc.isenabled(), type(value).__name__)
"""


def _run(name: str, before: str = "") -> list[str]:
    return _printed(_IMPORT.format(name=name, before=before))


def _printed(script: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


@pytest.mark.parametrize(("name", "kind"), [("get_kernel", "function"), ("GemmSpec", "_SpecMeta")])
def test_a_name_is_loaded_without_a_pass_and_the_collector_goes_on(name: str, kind: str) -> None:
    # The lambda's own call and the print may set off a pass once it runs again; loading itself never does.
    passes, enabled, found = _run(name)
    assert int(passes) <= 2  # one pass has a start and a stop
    assert enabled == "True"
    assert found == kind


def test_a_collector_that_was_off_stays_off() -> None:
    assert _run("get_kernel", before="gc.disable()")[1] == "False"


def test_the_collector_goes_on_after_a_module_that_cannot_be_imported() -> None:
    script = """
import gc, sys
import kaas

sys.modules["kaas.client.api"] = None  # makes its import fail
try:
    kaas.get_kernel
except ImportError:
    print(gc.isenabled())
"""
    assert _printed(script) == ["True"]
