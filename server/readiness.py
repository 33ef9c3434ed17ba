"""Readiness: what a probe is told, alike on every listener."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kaas.proto.errors import NotReady
from kaas.server.coverage import Coverage
from kaas.server.status import problem_document

_REASONS = {
    "workers_warm": "the compile workers are not warm",
    "store_usable": "the store is not usable",
    "kernels_covered": "kernels are missing",
}


def readiness_document(checks: Mapping[str, bool], coverage: Coverage | None) -> dict[str, Any]:
    """What ``/readyz`` says: the checks; if one fails, as a problem document with the status 503."""
    answer: dict[str, Any] = {"ready": all(checks.values()), "checks": dict(checks)}
    if coverage is not None:
        answer["coverage"] = msgspec.to_builtins(coverage)
    if answer["ready"]:
        return answer
    reasons = [_REASONS.get(name, name) for name, holds in checks.items() if not holds]
    if coverage is not None and not checks.get("kernels_covered", True):
        reasons[-1] = f"{coverage.total - coverage.held} of {coverage.total} kernels are missing"
        reasons[-1] += f" (coverage {coverage.coverage:.4f})"
    error = NotReady(
        f"not ready: {'; '.join(reasons)}",
        checks=dict(checks),
        coverage=coverage.coverage if coverage is not None else None,
    )
    return {**problem_document(error), **answer}
