"""A rank that is up: it has imported kaas, and gets the kernels it is told to."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.conversation import serve


def _get(order: dict[str, Any]) -> dict[str, float]:
    from kaas import GemmSpec, get_kernel

    begin, cpu = time.clock_gettime(time.CLOCK_MONOTONIC), time.process_time()
    get_kernel(GemmSpec(**order), timeout=300)
    return {
        "begin": begin,
        "end": time.clock_gettime(time.CLOCK_MONOTONIC),
        "cpu": time.process_time() - cpu,
    }


if __name__ == "__main__":
    serve(_get)
