"""A kernel family outside the package: a vector addition whose builder can be told to misbehave."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any, Literal

from kaas.kernel_library.family import BuiltKernel, Family
from kaas.kernel_library.spec import KernelSpec
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

TILE = 512


class StagedSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="staged"):
    """``c = a + b`` over ``length`` fp32 elements, a multiple of 512 per vector core."""

    length: int
    mode: Literal["build", "raise", "hang", "crash", "exit", "hoard", "misname"] = "build"


def build(spec: StagedSpec, target: Target) -> BuiltKernel:
    if spec.mode == "raise":
        raise RuntimeError("the builder does not like this\nat all")
    if spec.mode == "hang":
        # Inside C, with the interpreter's lock held: no Python signal handler will ever run.
        ctypes.PyDLL(None).sleep(600)
    if spec.mode == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if spec.mode == "exit":
        os._exit(3)
    if spec.mode == "hoard":
        hoard = []
        while True:
            hoard.append(b"x" * (4 << 20))
    return BuiltKernel(prim_func=_program(spec.length, target.vector_cores), choices={"tile": TILE})


def parameters(spec: StagedSpec) -> tuple[Parameter, ...]:
    names = ("a", "b", "d") if spec.mode == "misname" else ("a", "b", "c")
    return tuple(
        Parameter(name=name, role=role, dtype="fp32", shape=(spec.length,))
        for name, role in zip(names, ("in", "in", "out"), strict=True)
    )


def _program(length: int, cores: int) -> Any:
    import tilelang.ascend.language as T

    @T.prim_func
    def staged_add(
        a: T.Tensor((length,), "float32"),
        b: T.Tensor((length,), "float32"),
        c: T.Tensor((length,), "float32"),
    ):
        with T.Kernel(cores) as core:
            left = T.alloc_shared((TILE,), "float32")
            right = T.alloc_shared((TILE,), "float32")
            for turn in T.serial(T.ceildiv(length, TILE * cores)):
                first = (turn * cores + core) * TILE
                T.copy(a[first : first + TILE], left)
                T.copy(b[first : first + TILE], right)
                with T.SimdVF():
                    for lane in T.Parallel(TILE):
                        left[lane] = left[lane] + right[lane]
                T.copy(left, c[first : first + TILE])

    return staged_add


FAMILY = Family(
    name="staged",
    summary="a vector addition that misbehaves on request",
    spec_type=StagedSpec,
    parameters=parameters,
    build=build,
    module=__name__,
)
