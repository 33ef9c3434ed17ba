"""Process identity: job and rank of this process, as its launcher's variables name them."""

from __future__ import annotations

import os

_JOB = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "JOB_NAME")
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


def job_and_rank() -> tuple[str, str]:
    """Both as text, empty where no launcher says."""
    return _first(_JOB), _first(_RANK)


def legible_job_and_rank() -> tuple[str, str]:
    """The same as text that is JSON's, whatever bytes the environment had."""
    job, rank = (text.encode("utf-8", "replace").decode()[:256] for text in job_and_rank())
    return job, rank


def _first(names: tuple[str, ...]) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")
