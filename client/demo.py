"""demo: the whole way from a spec to right numbers, with a private daemon that ends with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaas.client.daemon_command import INSTALL_HINT
from kaas.client.exit_status import FAILED
from kaas.client.kernel_client import KernelClient
from kaas.client.private_daemon import START_LIMIT_S, PrivateDaemon
from kaas.proto.errors import TargetMismatch, ToolchainMissing

if TYPE_CHECKING:
    from kaas.client.handle import KernelHandle

NODE_SOC, OTHER_SOC = "Ascend950PR_9579", "Ascend950DT_9581"
ROWS, COLUMNS, DEPTH = 4000, 4100, 4096
ERROR_LIMIT = 1e-5

_FRESH_PROCESS = """
import json, sys, time
began = time.perf_counter()
from kaas import GemmSpec, get_kernel
handle = get_kernel(GemmSpec(n=int(sys.argv[1]), k=int(sys.argv[2])), strict=True)
print(json.dumps({"key": handle.key, "seconds": time.perf_counter() - began}))
"""


def run() -> int:
    """Run the demonstration; returns 0 only if every step was right."""
    torch = _torch()
    print(f"kaas demo: bf16 GEMM, m dynamic (here {ROWS}), n={COLUMNS}, k={DEPTH}; no tile divides m or n.")
    with _daemon() as (client, banner, environ):
        print(banner)
        from kaas.kernel_library.families.gemm import GemmSpec

        spec = GemmSpec(n=COLUMNS, k=DEPTH)
        node = _cold(client, spec, None)
        other = _cold(client, spec, OTHER_SOC)
        warm_ok = _warm(node.key, environ)
        right = _launch(node, torch)
        refused = _is_refused(other, torch)
    good = warm_ok and right and refused and node.key != other.key
    print("demo: all right" if good else "demo: FAILED")
    return 0 if good else FAILED


def _torch() -> Any:
    import importlib

    try:
        # By name: the client package has no dependency on torch, only this demonstration checks against it.
        return importlib.import_module("torch")
    except ImportError as error:
        raise ToolchainMissing(f"the demo compares with torch: {error}", hint=INSTALL_HINT) from None


@contextmanager
def _daemon() -> Iterator[tuple[KernelClient, str, dict[str, str]]]:
    """A daemon of the demo's own, as a client's environment sees it; always stopped, its store removed."""
    # Not in TMPDIR, which may be deep: a Unix socket's path is short.
    root = Path(tempfile.mkdtemp(prefix="kaas-demo-", dir="/tmp"))
    socket, store = root / "kaas.sock", root / "store"
    flags = {"socket": str(socket), "store": str(store), "soc_name": NODE_SOC, "rest_address": "off"}
    try:
        with PrivateDaemon(root, flags, purpose="demo's") as daemon:
            environ = {**os.environ, "KAAS_SOCKET": str(socket), "KAAS_STORE": str(store)}
            yield KernelClient(store, socket), daemon.banner, environ
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _cold(client: KernelClient, spec: Any, soc_name: str | None) -> KernelHandle:
    began = time.perf_counter()
    question = (spec, soc_name)
    handle = client.find(question) or client.fetch(question, START_LIMIT_S * 5, strict=False)
    seconds = time.perf_counter() - began
    target = handle.passport.target
    print(f"\n{target.soc_name} ({target.cube_cores} cube cores)")
    print(f"  key          {handle.key}")
    print(f"  cold         {seconds:.2f} s from request to handle ({handle.origin})")
    tiles = {name: value for name, value in handle.choices.items() if name != "why"}
    print(f"  tiles        {', '.join(f'{name}={value}' for name, value in tiles.items())}")
    return handle


def _warm(key: str, environ: dict[str, str]) -> bool:
    """The same kernel in a fresh process, from the store alone."""
    import json

    command = [sys.executable, "-c", _FRESH_PROCESS, str(COLUMNS), str(DEPTH)]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=START_LIMIT_S)
    if result.returncode:
        print(f"\nwarm: FAILED: {result.stderr.strip().splitlines()[-1:]}")
        return False
    answer = json.loads(result.stdout)
    same = answer["key"] == key
    print(f"\nwarm, in a fresh process: {1000 * answer['seconds']:.1f} ms, imports included, no request sent")
    print(f"  key          {'the same' if same else 'ANOTHER: ' + answer['key']}")
    return bool(same)


def _launch(handle: KernelHandle, torch: Any) -> bool:
    torch.manual_seed(0)
    a = torch.randn(ROWS, DEPTH).to(torch.bfloat16)
    b = torch.randn(COLUMNS, DEPTH).to(torch.bfloat16)
    d = torch.full((ROWS, COLUMNS), float("nan"), dtype=torch.bfloat16)
    began = time.perf_counter()
    handle(a, b, d)
    seconds = time.perf_counter() - began
    reference = a.float() @ b.float().T
    error = relative_error(d.double(), reference.double())
    good = error < ERROR_LIMIT
    where = "the CPU TWIN (no NPU: right numbers, emulated, its time says nothing about hardware)"
    if handle.passport.toolchain.kind == "cann":
        where = "the NPU"
    print(f"\nlaunch of {handle.launch.block_count} blocks on {where}")
    print(f"  took         {seconds:.1f} s")
    print(
        f"  error        {error:.2e} against torch (limit {ERROR_LIMIT:.0e}): {'right' if good else 'WRONG'}"
    )
    return good


def relative_error(x: Any, y: Any) -> float:
    """``1 - 2<x,y> / (<x,x> + <y,y>)`` of two float64 tensors: 0 when equal, NaN if either holds a NaN."""
    return float(1 - 2 * (x * y).sum() / (x * x + y * y).sum())


def _is_refused(handle: KernelHandle, torch: Any) -> bool:
    """Another part's kernel must not run on this node's device."""
    target = handle.passport.target
    tensors = [
        torch.zeros(shape, dtype=torch.bfloat16) for shape in ((16, DEPTH), (COLUMNS, DEPTH), (16, COLUMNS))
    ]
    try:
        handle(*tensors)
    except TargetMismatch as error:
        print(f"\nlaunch of {target.soc_name}'s kernel here: refused, as it must be: {error.message}")
        return True
    print(f"\nlaunch of {target.soc_name}'s kernel here: NOT REFUSED")
    return False
