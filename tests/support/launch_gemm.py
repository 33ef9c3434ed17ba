"""Client process for tests: get a gemm through the public API, launch it on the twin, print how wrong it is.

``python launch_gemm.py N K`` prints ``right`` or what differs; exit status 0 only when right.
"""

from __future__ import annotations

import sys

import numpy as np

from kaas import GemmSpec, get_kernel


def main() -> int:
    n, k = map(int, sys.argv[1:])
    kernel = get_kernel(GemmSpec(n=n, k=k, dtype_a="fp16", dtype_b="fp16", dtype_d="fp32"), timeout=300)
    draw = np.random.default_rng(n * k)
    m = 37
    a = draw.integers(-4, 5, (m, k)).astype(np.float16)
    b = draw.integers(-4, 5, (n, k)).astype(np.float16)
    d = np.full((m, n), np.nan, np.float32)
    kernel(a, b, d)
    # Small integers: every partial sum is exact, so that right means equal.
    wrong = int((d != a.astype(np.float32) @ b.astype(np.float32).T).sum())
    print(f"{wrong} of {d.size} elements are wrong" if wrong else f"right {kernel.origin} {kernel.key}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
