"""REST routes on coverage: which of many kernels this node holds."""

from __future__ import annotations

import msgspec
from fastapi import FastAPI

import kaas.server.rest_models as bodies
from kaas.server.coverage import Coverage, CoverageEntry, Coverages
from kaas.server.status import json_bytes


def add_coverage_routes(app: FastAPI, coverages: Coverages) -> None:
    """The question that a rollout asks every node."""

    @app.post("/v1/coverage", tags=["coverage"])
    async def ask_coverage(body: bodies.CoverageQuestionBody) -> bodies.CoverageBody:
        """Which of these kernels this node holds, by weight; with `wait_s`, when it holds enough of them.

        Entries for other CANN versions, and unless `all_targets` for other parts, are left out. Without
        entries: the manifest that this node's readiness waits for.
        """
        return coverage_body(
            await coverages.ask(
                [
                    CoverageEntry(
                        spec=entry.spec or b"",
                        key=entry.key,
                        soc_name=entry.soc_name,
                        cann=entry.cann,
                        weight=entry.weight,
                    )
                    for entry in body.entries
                ],
                all_targets=body.all_targets,
                missing_limit=body.missing_limit,
                coverage=body.coverage,
                wait_s=body.wait_s,
            )
        )


def coverage_body(coverage: Coverage) -> bodies.CoverageBody:
    """The answer as it is shown; whatever an error's details hold is JSON afterwards."""
    return bodies.CoverageBody.model_validate(msgspec.json.decode(json_bytes(msgspec.to_builtins(coverage))))
