"""Illegal engram_sinkhorn_step_reduce specs."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {"family": "engram_sinkhorn_step_reduce", "head_dim": 1024}
CASES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"head_dim": 96}, "head_dim"),
    (BASE | {"head_dim": 32832}, "head_dim"),
    (BASE | {"partials": 0}, "partials"),
    (BASE | {"partials": True}, "partials"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (BASE | {"partials": 1024}, "partials", "UB"),
]
