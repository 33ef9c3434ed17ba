"""What a daemon's audit log tells of who used which kernels, in the shape of processes' own records.

The log knows processes and kernels, not how often a process asked: each one that held a kernel counts once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from kaas.client.kernel_listing import list_kernels
from kaas.client.process_record import VERSION, ProcessRecord, RecordedKernel
from kaas.proto.canonical import canonical_json
from kaas.proto.errors import KernelNotFound

if TYPE_CHECKING:
    from kaas.client.daemon_link import DaemonLink

AUDIT_RECORDS = 10_000
"""The daemon gives no more at once; what is older is not looked at."""

MAX_KERNELS = 200_000


def records_of_audit(link: DaemonLink) -> list[ProcessRecord]:
    """One record for each process of the audit log that held a kernel which is still listed.

    Raises :class:`KernelNotFound` when there is none.
    """
    environment = link.environment()
    kernels = {kernel["key"]: kernel for kernel in list_kernels(link, MAX_KERNELS)[0]}
    processes: dict[tuple[Any, ...], dict[str, str]] = {}
    for use in link.audit("", "use", AUDIT_RECORDS):
        if use.get("key") in kernels:
            who = tuple(use.get(name) or "" for name in ("pid", "session", "job", "rank"))
            processes.setdefault(who, {})[use["key"]] = str(use.get("origin") or "store")
    if not processes:
        raise KernelNotFound("the audit log names no use of a kernel that is still here")
    host, now = str(link.socket), time.time()
    records = []
    for (pid, _, job, rank), held in processes.items():
        by_cann: dict[str, list[RecordedKernel]] = {}
        for key, origin in held.items():
            kernel = kernels[key]
            by_cann.setdefault(kernel["cann_version"], []).append(
                RecordedKernel(
                    spec=msgspec.Raw(canonical_json(kernel["spec"])),
                    soc_name=kernel["soc_name"],
                    count=1,
                    waited_s=0.0,
                    outcomes={"store" if origin == "held" else origin: 1},
                )
            )
        records += [
            ProcessRecord(
                version=VERSION,
                host=host,
                pid=int(pid or 0),
                job=str(job),
                rank=str(rank),
                started_unix=now,
                written_unix=now,
                soc_name=environment.target.soc_name,
                cann_version=cann,
                left_out=0,
                kernels=kernels_of_cann,
            )
            for cann, kernels_of_cann in by_cann.items()
        ]
    return records
