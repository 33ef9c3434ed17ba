"""REST routes on pre-warm jobs: start, list, show, cancel, follow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

import kaas.server.rest_models as bodies
from kaas.server.paging import page_of
from kaas.server.prewarm import PrewarmEntry, PrewarmJob, PrewarmJobs
from kaas.server.rest_parameters import PROBLEMS, JobId, PageSize, PageToken
from kaas.server.status import json_bytes

ERRORS_SHOWN = 100


def _find_job(job_id: JobId, request: Request) -> PrewarmJob:
    # A dependency, so that an unknown job is a 404 before an event stream has begun.
    jobs: PrewarmJobs = request.app.state.jobs
    return jobs.get(job_id)


Job = Annotated[PrewarmJob, Depends(_find_job)]


def add_prewarm_routes(app: FastAPI, jobs: PrewarmJobs) -> None:
    """Pre-warm jobs and their progress."""

    @app.post("/v1/prewarm", tags=["prewarm"], status_code=202)
    async def start_prewarm(body: bodies.PrewarmBody) -> bodies.JobBody:
        """Start a job that compiles many kernels behind foreground work; it outlives this call."""
        entries = [PrewarmEntry(spec=entry.spec, soc_name=entry.soc_name) for entry in body.entries]
        return _job(jobs.start(entries, body.label))

    @app.get("/v1/prewarm", tags=["prewarm"])
    async def list_prewarm(page_size: PageSize = 100, page_token: PageToken = "") -> bodies.JobPageBody:
        """Running jobs and the last finished ones, newest first."""
        page, next_token, total = page_of(list(reversed(jobs.all())), page_size, page_token)
        return bodies.JobPageBody(jobs=[_job(job) for job in page], next_page_token=next_token, total=total)

    @app.get("/v1/prewarm/{job_id}", tags=["prewarm"])
    async def show_prewarm(job: Job) -> bodies.JobBody:
        """How far a job is."""
        return _job(job)

    @app.delete("/v1/prewarm/{job_id}", tags=["prewarm"])
    async def cancel_prewarm(job: Job) -> bodies.JobBody:
        """Cancel a job: entries that no worker has begun are given up."""
        jobs.cancel(job.id)
        await job.ended()
        return _job(job)

    @app.get(
        "/v1/prewarm/{job_id}/events",
        tags=["prewarm"],
        response_class=EventSourceResponse,
        responses={
            200: {
                "description": "server-sent events: `entry` for each entry that is done, then one `finished`",
                "content": {"text/event-stream": {"example": 'event: entry\ndata: {"done":1,"total":2}\n\n'}},
            },
            **PROBLEMS,
        },
    )
    async def follow_prewarm(job: Job) -> AsyncIterator[ServerSentEvent]:
        """Every event of a job from its first to its last, live."""
        async for number, event in _numbered(job):
            yield ServerSentEvent(
                event="finished" if event["finished"] else "entry",
                id=str(number),
                raw_data=json_bytes(event).decode(),
            )


async def _numbered(job: PrewarmJob) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    number = 0
    async for event in job.follow():
        yield number, msgspec.to_builtins(event)
        number += 1


def _job(job: PrewarmJob) -> bodies.JobBody:
    return bodies.JobBody(
        id=job.id,
        label=job.label,
        state=job.state,
        total=job.total,
        done=job.done,
        ready=job.ready,
        failed=job.failed,
        created_unix=job.created_unix,
        errors=[
            bodies.JobErrorBody(index=index, error=msgspec.json.decode(json_bytes(record)))
            for index, record in job.errors[:ERRORS_SHOWN]
        ],
    )
