"""Row 4: what a handle's call costs on top of the ACL launch that it makes.

The kernel is empty and runs one block, in the calling thread, so that nothing but the launch is timed. The
direct side has the same library loaded by ctypes, the same image, and arguments packed once. Both launch on
the default stream and wait for it; the order changes from pair to pair. Of the time in Python, which is held
to a number of microseconds, the first quartile counts: what shares the processor with us doubles every figure
for seconds at a time, and only ever adds.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.effort import Effort
from benchmarks.node import DAEMON_CORE, pinned_json, running_node
from benchmarks.outcome import Check, Outcome, Row, Series

SOURCE = """
extern "C" __global__ __vector__ void empty_kernel(
    __gm__ uint8_t* a, __gm__ uint8_t* b, __gm__ uint8_t* d, int32_t m) {}
"""
ENTRY = "empty_kernel"
COLUMNS = 64
PAIRS = 4000


def measure(effort: Effort) -> Outcome:
    """Several client processes; each alternates handle calls and direct calls."""
    series = {"4 handle": Series(), "4 direct ctypes call": Series(), "4 Python on top": Series()}
    with tempfile.TemporaryDirectory(prefix="kaas-bench-") as name:
        directory = Path(name)
        with running_node(directory, core=DAEMON_CORE, warm=False) as node:
            _publish(node.store)
            environ = {**node.environ, "KAAS_TWIN_THREADS": "1"}
            for _ in range(effort.times(7, 2)):
                taken = pinned_json("launch", {"pairs": effort.times(PAIRS, 500)}, environ)
                series["4 handle"].samples += taken["handle"]
                series["4 direct ctypes call"].samples += taken["direct"]
                series["4 Python on top"].samples += [
                    ours - theirs for ours, theirs in zip(taken["handle"], taken["direct"], strict=True)
                ]
    ratio = series["4 handle"].median / series["4 direct ctypes call"].median
    row = Row(
        number="4",
        measured="handle call of an empty kernel on the twin: checks, packing, launch",
        against="direct ctypes call of the same ACL launch",
        checks=(
            Check(what="time", value=ratio, unit="x", direction="<=", target=3, ratio=True),
            Check(
                what="Python on top, first quartile",
                value=series["4 Python on top"].spread["p25"],
                unit="s",
                direction="<=",
                target=15e-6,
            ),
        ),
    )
    return Outcome(rows=[row], series=series)


def _publish(store: Path) -> None:
    """Compile the empty kernel with the node's toolkit and file it under a GEMM's key."""
    from kaas.cache.artifact import encode_artifact, mark_verified
    from kaas.cache.environment_file import read_environment
    from kaas.cache.layout import StoreLayout
    from kaas.compiler.device_build import build_device_binary
    from kaas.compiler.job import CompileLimits
    from kaas.compiler.toolkit import read_toolkit
    from kaas.proto.launch import LaunchMetadata, Parameter, SignatureArgument

    environment = read_environment(store)
    assert environment is not None
    toolkit = read_toolkit(Path(environment.locality.toolkit_home))
    with tempfile.TemporaryDirectory() as work:
        built = build_device_binary(
            SOURCE, toolkit, environment.options, CompileLimits(wall_s=120, memory_bytes=2 << 30), Path(work)
        )
    passport = environment.passport(_spec().to_record())
    tensors = [("a", "in"), ("b", "in"), ("d", "out")]
    created = time.time()
    encoded = encode_artifact(
        passport=passport,
        launch=LaunchMetadata(
            entry=ENTRY,
            block_count=1,
            dynamic_ub_bytes=0,
            parameters=tuple(
                Parameter(name=name, role=role, dtype="bf16", shape=("m", COLUMNS)) for name, role in tensors
            ),
            signature=(
                *(SignatureArgument(name=name, kind="pointer", dtype="bf16") for name, _ in tensors),
                SignatureArgument(name="m", kind="symbol", dtype="int32"),
            ),
        ),
        choices={},
        image=built.image,
        source=SOURCE,
        log=built.log,
        created_unix=created,
        compile_seconds=1.0,
    )
    path = StoreLayout(store).artifact_path(passport.key())
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_bytes(encoded)
    path.chmod(0o444)
    mark_verified(path, created)


def _spec() -> Any:
    from kaas import GemmSpec

    return GemmSpec(n=COLUMNS, k=COLUMNS)


def _samples(pairs: int) -> dict[str, list[float]]:
    """In the client: calls in turns."""
    import torch

    from kaas import get_kernel

    handle = get_kernel(_spec(), strict=True)
    a, b, d = (torch.zeros((32, COLUMNS), dtype=torch.bfloat16) for _ in range(3))
    handle(a, b, d)
    direct = _direct_launch(bytes(handle._kernel.image), (a, b, d))
    taken: dict[str, list[float]] = {"handle": [], "direct": []}
    clock = time.perf_counter_ns
    for turn in range(pairs + 200):
        pair = {}
        for side in ("handle", "direct") if turn % 2 else ("direct", "handle"):
            if side == "handle":
                begin = clock()
                handle(a, b, d)
                pair[side] = (clock() - begin) * 1e-9
            else:
                begin = clock()
                direct()
                pair[side] = (clock() - begin) * 1e-9
        if turn >= 200:
            for side, value in pair.items():
                taken[side].append(value)
    return taken


def _direct_launch(image: bytes, tensors: tuple[Any, ...]) -> Any:
    """The same launch and wait by ctypes alone: no checks, arguments packed once."""
    from kaas.cache.environment_file import read_environment

    environment = read_environment(os.environ["KAAS_STORE"])
    assert environment is not None
    library = ctypes.CDLL(f"{environment.locality.toolkit_home}/lib64/libascendcl.so")
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    load, find = library.aclrtBinaryLoadFromData, library.aclrtBinaryGetFunction
    load.argtypes = (pointer, size, pointer, pointer)
    find.argtypes = (pointer, ctypes.c_char_p, pointer)
    binary, function = pointer(), pointer()
    assert load(image, len(image), None, ctypes.byref(binary)) == 0
    assert find(binary, ENTRY.encode(), ctypes.byref(function)) == 0
    launch, wait = library.aclrtLaunchKernelWithHostArgs, library.aclrtSynchronizeStream
    launch.argtypes = (pointer, ctypes.c_uint32, pointer, pointer, pointer, size, pointer, size)
    wait.argtypes = (pointer,)
    packed = struct.pack("<QQQi4x", *(tensor.data_ptr() for tensor in tensors), tensors[0].shape[0])
    block = ctypes.create_string_buffer(packed, len(packed))
    address, length = function.value, len(packed)

    def call() -> None:
        if launch(address, 1, None, None, block, length, None, 0) or wait(None):
            raise RuntimeError("the runtime refused the launch")

    return call


if __name__ == "__main__":
    print(json.dumps(_samples(**json.loads(sys.argv[1]))))
