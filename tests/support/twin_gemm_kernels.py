"""Small TileLang GEMMs, and their lowering to Ascend C in a process of its own.

``python twin_gemm_kernels.py OUT.json`` writes ``{name: source}``. No postponed annotations here: TileLang
evaluates the parameter annotations of a kernel.
"""

import json
import sys
from pathlib import Path

import tilelang
import tilelang.ascend.language as T
from tvm.target import Target

BLOCKS = 4
ROWS, COLUMNS, DEPTH = 200, 280, 330


def gemm(layout: str, dtype: str, out: str):
    """D[M, N] = A @ B over ragged shapes, L0 tiles placed by hand; second letter t: B is stored [N, K]."""
    tile_m, tile_n, tile_k = 128, 128, 64
    left_shape = (DEPTH, ROWS) if layout[0] == "t" else (ROWS, DEPTH)
    right_shape = (COLUMNS, DEPTH) if layout[1] == "t" else (DEPTH, COLUMNS)
    tiles_n = -(-COLUMNS // tile_n)
    tiles = -(-ROWS // tile_m) * tiles_n
    steps = -(-DEPTH // tile_k)

    @T.prim_func
    def main(
        A: T.Tensor(left_shape, dtype), B: T.Tensor(right_shape, dtype), D: T.Tensor((ROWS, COLUMNS), out)
    ):
        with T.Kernel(BLOCKS) as block:
            a_l1 = T.alloc_l1((tile_k, tile_m) if layout[0] == "t" else (tile_m, tile_k), dtype)
            b_l1 = T.alloc_l1((tile_n, tile_k) if layout[1] == "t" else (tile_k, tile_n), dtype)
            a_l0 = T.alloc_l0a((tile_m, tile_k), dtype)
            b_l0 = T.alloc_l0b((tile_n, tile_k), dtype)
            total = T.alloc_l0c((tile_m, tile_n), "float32")
            for tile in T.Persistent([tiles], BLOCKS, block):
                m = tile // tiles_n * tile_m
                n = tile % tiles_n * tile_n
                for step in T.Pipelined(steps, num_stages=2):
                    k = step * tile_k
                    if layout[0] == "t":
                        T.copy(A[k : k + tile_k, m : m + tile_m], a_l1)
                    else:
                        T.copy(A[m : m + tile_m, k : k + tile_k], a_l1)
                    if layout[1] == "t":
                        T.copy(B[n : n + tile_n, k : k + tile_k], b_l1)
                    else:
                        T.copy(B[k : k + tile_k, n : n + tile_n], b_l1)
                    T.copy(a_l1, a_l0, transpose=layout[0] == "t")
                    T.copy(b_l1, b_l0, transpose=layout[1] != "t")
                    T.gemm(a_l0, b_l0, total, transpose_B=True, clear_accum=(step == 0))
                T.copy(total, D[m : m + tile_m, n : n + tile_n])

    return main


def mixed_relu():
    """C[256, 256] = relu(A[256, 256] @ B[256, 256].T): cube cores multiply, vector cores post-process."""
    size, tile, tile_k = 256, 128, 64
    shape = (size, size)

    @T.prim_func
    def main(A: T.Tensor(shape, "bfloat16"), B: T.Tensor(shape, "bfloat16"), C: T.Tensor(shape, "float32")):
        with T.Kernel(BLOCKS) as block:
            a_l1 = T.alloc_l1((tile, tile_k), "bfloat16")
            b_l1 = T.alloc_l1((tile, tile_k), "bfloat16")
            total = T.alloc_l0c((tile, tile), "float32")
            half_tile = T.alloc_shared((tile // 2, tile), "float32")
            for index in T.Persistent([4], BLOCKS, block):
                m = index // 2 * tile
                n = index % 2 * tile
                for step in T.Pipelined(size // tile_k, num_stages=2):
                    T.copy(A[m, step * tile_k], a_l1)
                    T.copy(B[n, step * tile_k], b_l1)
                    T.gemm(a_l1, b_l1, total, transpose_B=True, clear_accum=(step == 0))
                T.dual_copy(total, half_tile)
                with T.SimtVF(threads=128):
                    for i, j in T.Parallel(tile // 2, tile):
                        half_tile[i, j] = T.max(half_tile[i, j], 0)
                T.dual_copy(half_tile, C[m : m + tile, n : n + tile])

    return main


def main(output: Path) -> None:
    """Lower every kernel and write the sources."""
    builders = {
        "bf16_nt": lambda: gemm("nt", "bfloat16", "bfloat16"),
        "bf16_tn": lambda: gemm("tn", "bfloat16", "float32"),
        "fp32_nn": lambda: gemm("nn", "float32", "float32"),
        "mixed_relu": mixed_relu,
    }
    sources = {}
    for name, build in builders.items():
        with Target({"kind": "ascend"}):
            lowered = tilelang.lower(
                build(), target="ascend", enable_device_compile=False, enable_host_codegen=False
            )
        sources[name] = lowered.kernel_source
    output.write_text(json.dumps(sources), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
