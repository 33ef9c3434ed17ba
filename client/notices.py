"""Notices: what a rank should know although nothing failed; logging is imported when there is one."""

from __future__ import annotations


def warn(message: str, *values: object) -> None:
    """Log a warning under ``kaas.client``."""
    import logging

    logging.getLogger("kaas.client").warning(message, *values)
