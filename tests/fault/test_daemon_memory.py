"""The daemon's memory over many requests of every kind: flat, once it has served a tenth of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import httpx
import pytest
from support.daemon import DaemonProcess
from support.fake_toolkit import FakeToolkit
from support.stored_kernels import store_gemm

from kaas import GemmSpec
from kaas.client.daemon_link import DaemonLink
from kaas.proto.errors import StrictMiss

KERNELS = 50
FLAT = 1.15
"""Memory at the end against memory at a tenth: room for the allocators, not for a record of each request."""


@pytest.mark.parametrize("requests", [3_000, pytest.param(25_000, marks=pytest.mark.slow)])
def test_the_daemons_memory_does_not_grow_with_requests(tmp_path: Path, requests: int) -> None:
    toolkit = FakeToolkit(tmp_path / "toolkit")
    with DaemonProcess(tmp_path, toolkit_home=str(toolkit.home), log_level="warning") as daemon:
        daemon.wait_ready()
        for n in range(16, 16 * (KERNELS + 1), 16):
            store_gemm(daemon.store, n)
        link = DaemonLink(Path(daemon.socket))
        rest = httpx.Client(base_url=daemon.rest_url, timeout=60)
        resident = []
        misses = itertools.count(16 * (KERNELS + 1), 16)

        def ask(count: int) -> None:
            for number in range(count):
                spec = GemmSpec(n=16 * (number % KERNELS + 1), k=64)
                if number % 10 == 0:
                    body = {"spec": spec.to_record()}
                    assert rest.post("/v1/kernels", json=body).json()["outcome"] == "hit"
                elif number % 10 == 1:  # never the same one twice
                    with pytest.raises(StrictMiss):
                        link.get_kernel(GemmSpec(n=next(misses), k=64).canonical(), strict=True)
                else:
                    assert link.get_kernel(spec.canonical()).outcome == 1
            resident.append(link.usage()["daemon_resident_bytes"])

        ask(requests // 10)
        ask(requests - requests // 10)
        link.close()
        rest.close()
    assert resident[0] > 10 << 20
    assert resident[1] <= FLAT * resident[0], resident
