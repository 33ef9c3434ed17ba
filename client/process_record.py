"""What one process records of its get_kernel stream: totals for each kernel, never single calls."""

from __future__ import annotations

import msgspec

VERSION = 1
SUFFIX = ".kaas-record.json"
MAX_KERNELS = 20_000
"""Of one process; what comes later is only counted."""


class RecordedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """How often a process asked for a kernel, how long it waited for the daemon in all, and what it got.

    ``soc_name`` is what was asked for; empty is the node's own part. ``outcomes`` counts by ``memo``,
    ``store``, ``hit``, ``joined``, ``compiled``, or an error's code.
    """

    spec: msgspec.Raw
    soc_name: str
    count: int
    waited_s: float
    outcomes: dict[str, int]


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One file; times are Unix seconds. Part and CANN are the node's, empty if it does not say."""

    version: int
    host: str
    pid: int
    job: str
    rank: str
    started_unix: float
    written_unix: float
    soc_name: str
    cann_version: str
    left_out: int
    kernels: list[RecordedKernel]
