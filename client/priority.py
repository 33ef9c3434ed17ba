"""Priority: who is held up while a kernel is not there; the daemon compiles for the most urgent first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, get_args

from kaas.proto.errors import InvalidArgument

Priority = Literal["rank", "user", "prewarm"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)

RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "RANK_ID",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
)
"""What torchrun, Ascend's and other launchers set for the processes of a training job."""


def chosen_priority(priority: str | None, environ: Mapping[str, str] = os.environ) -> Priority:
    """``priority`` itself; ``None`` means ``rank`` in a process that a launcher started, else ``user``.

    Raises :class:`InvalidArgument` for anything else.
    """
    if priority is None:
        return "rank" if any(environ.get(name) for name in RANK_VARIABLES) else "user"
    for known in PRIORITIES:
        if priority == known:
            return known
    raise InvalidArgument(
        f"priority is {priority!r}; legal: {', '.join(PRIORITIES)}, or None",
        argument="priority",
        legal=list(PRIORITIES),
    )
