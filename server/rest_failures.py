"""REST routes on remembered failures: list, show, clear."""

from __future__ import annotations

import msgspec
from fastapi import FastAPI

import kaas.server.rest_models as bodies
from kaas.server.negative_results import Failure, NegativeResults
from kaas.server.paging import page_of
from kaas.server.rest_parameters import Filter, Key, PageSize, PageToken


def add_failure_routes(app: FastAPI, failures: NegativeResults) -> None:
    """Compiles that failed and are remembered."""

    @app.get("/v1/failures", tags=["failures"])
    async def list_failures(
        family: Filter = "", page_size: PageSize = 100, page_token: PageToken = ""
    ) -> bodies.FailurePageBody:
        """Remembered failures, newest first."""
        found = failures.of_family(family)
        page, next_token, total = page_of(found, page_size, page_token)
        return bodies.FailurePageBody(
            failures=[failure_body(failure, failures.answered(failure.key)) for failure in page],
            next_page_token=next_token,
            total=total,
        )

    @app.get("/v1/failures/{key}", tags=["failures"])
    async def show_failure(key: Key) -> bodies.FailureBody:
        """One remembered failure, with the end of the compiler's log."""
        failure = failures.find(key)
        return failure_body(failure, failures.answered(failure.key))

    @app.delete("/v1/failures", tags=["failures"])
    async def clear_failures() -> bodies.ClearedBody:
        """Forget every failure."""
        return bodies.ClearedBody(keys=failures.clear_all())

    @app.delete("/v1/failures/{key}", tags=["failures"])
    async def clear_failure(key: Key) -> bodies.ClearedBody:
        """Forget one failure: the next request compiles again."""
        return bodies.ClearedBody(keys=failures.clear(key))


def failure_body(failure: Failure, answered: int = 0) -> bodies.FailureBody:
    """A remembered failure as REST shows it."""
    passport = failure.passport
    return bodies.FailureBody(
        key=failure.key,
        family=failure.family,
        spec=msgspec.to_builtins(passport.spec),
        soc_name=passport.target.soc_name,
        cann_version=passport.toolchain.cann_version,
        toolchain_kind=passport.toolchain.kind,
        kind=failure.kind,
        attempts=failure.attempts,
        failed_unix=failure.failed_unix,
        expires_unix=failure.expires_unix,
        answered=answered,
        error=failure.error,
    )
