"""Log facts: structured values of a log call, which the daemon's formats show beside the message."""

from __future__ import annotations

from typing import Any

FACTS_ATTRIBUTE = "kaas_facts"
"""Where a log record carries them."""


def facts(**values: Any) -> dict[str, Any]:
    """The ``extra`` of a log call."""
    return {FACTS_ATTRIBUTE: {name: value for name, value in values.items() if value not in (None, "")}}
