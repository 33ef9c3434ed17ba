"""A rank that keeps asking: every two milliseconds a store hit and a memo hit, each timed."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.conversation import serve
from benchmarks.filled_store import spec_number

KERNELS = 100
PAUSE_S = 0.002


def _ask(seconds: float) -> dict[str, Any]:
    from kaas import get_kernel
    from kaas.client import api

    specs = [spec_number(number) for number in range(KERNELS)]
    for spec in specs:
        get_kernel(spec)
    hits: list[float] = []
    memo: list[float] = []
    clock = time.perf_counter_ns
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        spec = specs[number % KERNELS]
        number += 1
        del api._memo[(spec, None)]
        for samples in (hits, memo):
            begin = clock()
            get_kernel(spec)
            samples.append((clock() - begin) * 1e-9)
        time.sleep(PAUSE_S)
    assert all(handle.origin == "store" for handle in api._memo.values())
    return {"hit": hits, "memo": memo}


if __name__ == "__main__":
    serve(_ask)
