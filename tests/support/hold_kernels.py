"""A rank that gets gemm kernels by n, says so, and goes on holding them until its standard input ends.

``fork`` as the first argument makes a child that does nothing but live as long; ``k=...`` before the first n
asks for that k instead of 64.
"""

from __future__ import annotations

import os
import sys

from kaas import GemmSpec, get_kernel


def main(arguments: list[str]) -> None:
    forks = arguments[:1] == ["fork"]
    wanted = arguments[forks:]
    k = int(wanted.pop(0).removeprefix("k=")) if wanted and wanted[0].startswith("k=") else 64
    handles = [get_kernel(GemmSpec(n=int(n), k=k), strict=True) for n in wanted]
    child = os.fork() if forks else 0
    if forks and child == 0:
        sys.stdin.read()
        os._exit(0)
    print("holding", os.getpid(), child, *(handle.key for handle in handles), flush=True)
    for line in sys.stdin:
        handle = get_kernel(GemmSpec(n=int(line), k=k), strict=True)
        handles.append(handle)
        print("holding", os.getpid(), child, handle.key, flush=True)
    if child:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
