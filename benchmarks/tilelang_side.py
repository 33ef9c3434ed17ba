"""The other side: the same kernel programs through TileLang's own caches, with the same toolkit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.node import SOC, Node


def tilelang_environment(node: Node, cache: Path) -> dict[str, str]:
    """What a process needs so that TileLang compiles with the node's toolkit and caches in ``cache``."""
    from kaas.cache.environment_file import read_environment

    environment = read_environment(node.store)
    if environment is None:
        raise RuntimeError("the daemon has published no environment")
    return {"BISHENG_HOME": environment.locality.toolkit_home, "TILELANG_CACHE_DIR": str(cache)}


def jitted_gemm() -> Callable[..., Any]:
    """``@tilelang.jit`` around the library's own GEMM program; called with n, k, m."""
    import tilelang
    from tvm.target import Target

    from kaas import GemmSpec
    from kaas.kernel_library.families.gemm import build
    from kaas.kernel_library.targets import target_named

    target = target_named(SOC)
    with Target({"kind": "ascend"}):
        configs = build(GemmSpec(n=512, k=512, m=512), target).pass_configs

    @tilelang.jit(target="ascend", pass_configs=configs)
    def gemm(n: int, k: int, m: int) -> Any:
        with Target({"kind": "ascend"}):
            return build(GemmSpec(n=n, k=k, m=m), target).prim_func

    return gemm
