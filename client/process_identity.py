"""Process identity: job and rank of this process, as its launcher's variables name them."""

from __future__ import annotations

import os

_JOB = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "JOB_NAME")
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


def job_and_rank() -> tuple[str, str]:
    """Both as text, empty where no launcher says."""
    return _first(_JOB), _first(_RANK)


def _first(names: tuple[str, ...]) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")
