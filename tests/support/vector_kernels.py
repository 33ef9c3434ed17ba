"""Small TileLang kernels for the vector core, and their lowering to Ascend C in a process of its own.

``python vector_kernels.py OUT.json`` writes ``{name: source}``. No postponed annotations here: TileLang
evaluates the parameter annotations of a kernel.
"""

import json
import os
import sys
from pathlib import Path

import tilelang
import tilelang.ascend.language as T
from tvm.target import Target

BLOCKS = 4
LENGTH = 16384
ROWS = 64
HIDDEN = 1536
FP8_HIDDEN = 512


def multiply_add_simd(dtype: str):
    tile = 1024

    @T.prim_func
    def multiply_add(
        X: T.Tensor((LENGTH,), dtype), Y: T.Tensor((LENGTH,), dtype), Z: T.Tensor((LENGTH,), dtype)
    ):
        with T.Kernel(BLOCKS) as block:
            x_ub = T.alloc_shared((tile,), dtype)
            y_ub = T.alloc_shared((tile,), dtype)
            z_ub = T.alloc_shared((tile,), dtype)
            for step in T.Pipelined(LENGTH // (tile * BLOCKS), num_stages=2):
                first = (step * BLOCKS + block) * tile
                T.copy(X[first : first + tile], x_ub)
                T.copy(Y[first : first + tile], y_ub)
                with T.SimdVF():
                    for i in T.Parallel(tile):
                        z_ub[i] = x_ub[i] + y_ub[i] * y_ub[i]
                T.copy(z_ub, Z[first : first + tile])

    return multiply_add


def softmax_simd():
    columns = 64

    @T.prim_func
    def softmax(X: T.Tensor((ROWS, columns), "float32"), Y: T.Tensor((ROWS, columns), "float32")):
        with T.Kernel(BLOCKS) as block:
            x_ub = T.alloc_shared((ROWS // BLOCKS, columns), "float32")
            y_ub = T.alloc_shared((ROWS // BLOCKS, columns), "float32")
            T.copy(X[block * (ROWS // BLOCKS), 0], x_ub)
            with T.SimdVF():
                for row in T.serial(ROWS // BLOCKS):
                    x = T.simd.vld(x_ub[row, 0])
                    largest = T.simd.vdupv(T.simd.vcmax(x))
                    powers = T.simd.vexpdif(x, largest)
                    total = T.simd.vdupv(T.simd.vcadd(powers))
                    T.simd.vsts(y_ub[row, 0], T.simd.vdiv(powers, total))
            T.copy(y_ub, Y[block * (ROWS // BLOCKS), 0])

    return softmax


def scale_bf16_simd():
    """bf16 -> f32 in even and odd parts, scaled there, and back into one register."""
    tile = 1024

    @T.prim_func
    def scale(X: T.Tensor((LENGTH,), "bfloat16"), Y: T.Tensor((LENGTH,), "bfloat16")):
        with T.Kernel(BLOCKS) as block:
            x_ub = T.alloc_shared((tile,), "bfloat16")
            y_ub = T.alloc_shared((tile,), "bfloat16")
            for step in T.Pipelined(LENGTH // (tile * BLOCKS), num_stages=2):
                first = (step * BLOCKS + block) * tile
                T.copy(X[first : first + tile], x_ub)
                with T.SimdVF():
                    for chunk in T.serial(tile // 128):
                        x = T.simd.vld(x_ub[chunk * 128])
                        even = T.simd.vmuls(T.simd.vcvt(x, "float32", part=0), T.float32(0.3))
                        odd = T.simd.vmuls(T.simd.vcvt(x, "float32", part=1), T.float32(0.3))
                        low = T.simd.vcvt(even, "bfloat16", part=0)
                        high = T.simd.vcvt(odd, "bfloat16", part=1)
                        bits = T.simd.vor(T.reinterpret("uint16x128", low), T.reinterpret("uint16x128", high))
                        T.simd.vsts(y_ub[chunk * 128], T.reinterpret("bfloat16x128", bits), dist="NORM_B16")
                T.copy(y_ub, Y[first : first + tile])

    return scale


def gate_simt(dtype: str):
    tile = 1024

    @T.prim_func
    def gate(X: T.Tensor((LENGTH,), dtype), G: T.Tensor((LENGTH,), dtype), Z: T.Tensor((LENGTH,), dtype)):
        with T.Kernel(BLOCKS) as block:
            x_ub = T.alloc_shared((tile,), dtype)
            g_ub = T.alloc_shared((tile,), dtype)
            z_ub = T.alloc_shared((tile,), dtype)
            for step in T.Pipelined(LENGTH // (tile * BLOCKS), num_stages=2):
                first = (step * BLOCKS + block) * tile
                T.copy(X[first : first + tile], x_ub)
                T.copy(G[first : first + tile], g_ub)
                with T.SimtVF(threads=256):
                    for i in T.Parallel(tile):
                        z_ub[i] = x_ub[i] / (1.0 + T.exp(-g_ub[i]))
                T.copy(z_ub, Z[first : first + tile])

    return gate


def rmsnorm_simt(dtype: str):
    padded = tilelang.next_power_of_2(HIDDEN)

    @T.prim_func
    def rmsnorm(
        X: T.Tensor((ROWS * HIDDEN,), dtype),
        W: T.Tensor((HIDDEN,), dtype),
        Y: T.Tensor((ROWS * HIDDEN,), dtype),
    ):
        with T.Kernel(BLOCKS) as block:
            w_ub = T.alloc_shared((HIDDEN,), dtype)
            x_ub = T.alloc_shared((padded,), dtype)
            y_ub = T.alloc_shared((padded,), dtype)
            T.copy(W[:HIDDEN], w_ub[:HIDDEN])
            for step in T.Pipelined(ROWS // BLOCKS, num_stages=2):
                first = (step * BLOCKS + block) * HIDDEN
                T.copy(X[first : first + HIDDEN], x_ub[:HIDDEN])
                with T.SimtVF(threads=128):
                    x = T.alloc_fragment((padded,), "float32")
                    squares = T.alloc_reducer((1,), "float32", op="sum", replication="all")
                    T.clear(squares)
                    for i in T.Parallel(padded):
                        x[i] = T.cast(x_ub[i], "float32")
                    for i in T.Parallel(padded):
                        if i < HIDDEN:
                            squares[0] += x[i] * x[i]
                    T.finalize_reducer(squares)
                    factor = T.rsqrt(squares[0] / HIDDEN + 1e-6)
                    for i in T.Parallel(padded):
                        if i < HIDDEN:
                            y_ub[i] = T.cast(x[i] * factor * T.cast(w_ub[i], "float32"), dtype)
                T.copy(y_ub[:HIDDEN], Y[first : first + HIDDEN])

    return rmsnorm


def fp8_rows_simt():
    """Each row divided by its largest magnitude / 448 and rounded to float8 e4m3."""

    @T.prim_func
    def fp8_rows(
        X: T.Tensor((ROWS, FP8_HIDDEN), "float32"),
        Q: T.Tensor((ROWS, FP8_HIDDEN), "float8_e4m3fn"),
        S: T.Tensor((ROWS, 8), "float32"),
    ):
        with T.Kernel(BLOCKS) as block:
            x_ub = T.alloc_shared((FP8_HIDDEN,), "float32")
            q_ub = T.alloc_shared((FP8_HIDDEN,), "float8_e4m3fn")
            s_ub = T.alloc_shared((8,), "float32")
            for step in T.Pipelined(ROWS // BLOCKS, num_stages=2):
                row = step * BLOCKS + block
                T.copy(X[row, :], x_ub)
                with T.SimtVF(threads=128):
                    largest = T.alloc_reducer((1,), "float32", op="max", replication="all")
                    T.fill(largest, 1e-4)
                    for i in T.Parallel(FP8_HIDDEN):
                        largest[0] = T.max(largest[0], T.abs(x_ub[i]))
                    T.finalize_reducer(largest)
                    step_size = largest[0] / 448.0
                    for i in T.Parallel(8):
                        s_ub[i] = step_size
                    for i in T.Parallel(FP8_HIDDEN):
                        q_ub[i] = T.cast(x_ub[i] / step_size, "float8_e4m3fn")
                T.copy(q_ub, Q[row, :])
                T.copy(s_ub, S[row, :])

    return fp8_rows


KERNELS = {
    "multiply_add_float32": lambda: multiply_add_simd("float32"),
    "multiply_add_bfloat16": lambda: multiply_add_simd("bfloat16"),
    "multiply_add_float16": lambda: multiply_add_simd("float16"),
    "softmax": softmax_simd,
    "scale_bf16": scale_bf16_simd,
    "gate_float32": lambda: gate_simt("float32"),
    "gate_float16": lambda: gate_simt("float16"),
    "rmsnorm_float32": lambda: rmsnorm_simt("float32"),
    "rmsnorm_bfloat16": lambda: rmsnorm_simt("bfloat16"),
    "fp8_rows": fp8_rows_simt,
}


def lower(name: str) -> str:
    with Target({"kind": "ascend"}):
        artifact = tilelang.lower(
            KERNELS[name](), target="ascend", enable_device_compile=False, enable_host_codegen=False
        )
    return artifact.kernel_source


if __name__ == "__main__":
    os.environ["TILELANG_DISABLE_CACHE"] = "1"
    Path(sys.argv[1]).write_text(json.dumps({name: lower(name) for name in KERNELS}), encoding="utf-8")
