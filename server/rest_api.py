"""REST for operators: what is cached, why something missed, compile and pre-warm. Thin over the service."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

import kaas.server.rest_models as bodies
from kaas.kernel_library.registry import families, json_schema
from kaas.proto.errors import InvalidRequest, KaasError
from kaas.server.catalog import Catalog, KernelFilter, KernelSummary
from kaas.server.kernel_request import KernelRequest
from kaas.server.prewarm import PrewarmEntry, PrewarmJob, PrewarmJobs
from kaas.server.service import KernelService
from kaas.server.status import (
    PROBLEM_MEDIA_TYPE,
    as_kaas_error,
    http_problem,
    http_status,
    json_bytes,
    problem_document,
)

MAX_PAGE = 500
ERRORS_SHOWN = 100

Readiness = Callable[[], Awaitable[dict[str, bool]]]
Item = TypeVar("Item")

Key = Annotated[
    str,
    Path(
        description="the full key, or an unambiguous prefix of at least 6 digits",
        pattern=r"^[0-9a-f]{6,64}$",
        examples=[bodies.KEY],
    ),
]
JobId = Annotated[str, Path(max_length=64, examples=["9f86d081884c7d65"])]
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE)]
PageToken = Annotated[str, Query(max_length=512, description="`next_page_token` of the page before")]
Filter = Annotated[str, Query(max_length=200)]


def _find_job(job_id: JobId, request: Request) -> PrewarmJob:
    # A dependency, so that an unknown job is a 404 before an event stream has begun.
    jobs: PrewarmJobs = request.app.state.jobs
    return jobs.get(job_id)


Job = Annotated[PrewarmJob, Depends(_find_job)]

_PROBLEM: dict[str, Any] = {
    "description": "RFC 9457 problem document",
    "content": {
        PROBLEM_MEDIA_TYPE: {
            "schema": {"$ref": "#/components/schemas/Problem"},
            "example": bodies.Problem.model_config["json_schema_extra"]["examples"][0],  # type: ignore[index, call-overload]
        }
    },
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {"4XX": _PROBLEM, "5XX": _PROBLEM}


def _text_of(example: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {"text/plain": {"example": example}}}, **_PROBLEMS}


def create_app(
    service: KernelService, catalog: Catalog, jobs: PrewarmJobs, readiness: Readiness, version: str
) -> FastAPI:
    """The ASGI app; the guard and the listener are the caller's business."""
    app = FastAPI(
        title="kaas",
        summary="Kernels for Ascend NPUs: what is cached, why it missed, compile and pre-warm",
        version=version,
        docs_url=None,
        redoc_url=None,
        responses=_PROBLEMS,
        redirect_slashes=False,
    )
    app.state.jobs = jobs
    _add_error_handlers(app)
    _add_kernels(app, service, catalog)
    _add_prewarm(app, jobs)
    _add_node(app, service, readiness)
    _describe(app)
    return app


def _add_kernels(app: FastAPI, service: KernelService, catalog: Catalog) -> None:
    @app.get("/v1/kernels", tags=["kernels"])
    async def list_kernels(
        family: Filter = "",
        soc_name: Filter = "",
        cann_version: Filter = "",
        dtype: Filter = "",
        state: Literal["", "ready", "compiling", "queued", "failed"] = "",
        text: Annotated[str, Query(max_length=200, description="substring of key or spec")] = "",
        page_size: PageSize = 100,
        page_token: PageToken = "",
    ) -> bodies.KernelPageBody:
        """Cached kernels, most recently used first, and those that are coming."""
        page = await catalog.list(
            KernelFilter(
                family=family,
                soc_name=soc_name,
                cann_version=cann_version,
                dtype=dtype,
                state=state,
                text=text,
            ),
            page_size=page_size,
            page_token=page_token,
        )
        return bodies.KernelPageBody(
            kernels=[_summary(summary) for summary in page.kernels],
            next_page_token=page.next_page_token,
            total=page.total,
        )

    @app.get("/v1/kernels/{key}", tags=["kernels"])
    async def describe_kernel(key: Key) -> bodies.KernelBody:
        """One kernel: passport, launch metadata, the builder's choices."""
        kernel = await catalog.describe(key)
        return bodies.KernelBody(
            summary=_summary(kernel.summary),
            passport=msgspec.to_builtins(kernel.passport),
            launch=msgspec.to_builtins(kernel.launch),
            choices=kernel.choices,
            artifact_path=str(kernel.path),
        )

    @app.get(
        "/v1/kernels/{key}/source",
        tags=["kernels"],
        response_class=PlainTextResponse,
        responses=_text_of('extern "C" __global__ __aicore__ void kernel(...) { ... }'),
    )
    async def kernel_source(key: Key) -> str:
        """The generated Ascend C source."""
        return (await catalog.describe(key)).source

    @app.get(
        "/v1/kernels/{key}/log",
        tags=["kernels"],
        response_class=PlainTextResponse,
        responses=_text_of("bisheng: 0 errors\n"),
    )
    async def kernel_log(key: Key) -> str:
        """The log of the compile that made it."""
        return (await catalog.describe(key)).log

    @app.post("/v1/kernels", tags=["kernels"])
    async def compile_kernel(body: bodies.CompileBody) -> bodies.DeliveryBody:
        """Find or compile one kernel. After `timeout_s` a compile under way goes on for whoever asks next."""
        delivery = await service.get_kernel(
            KernelRequest(spec=body.spec, soc_name=body.soc_name, timeout_s=body.timeout_s, client="rest")
        )
        return bodies.DeliveryBody(
            key=delivery.key,
            outcome=delivery.outcome,
            artifact_path=str(delivery.artifact_path) if delivery.artifact_path else None,
            compile_seconds=delivery.compile_seconds,
            waited_seconds=delivery.waited_seconds,
        )

    @app.post("/v1/explain", tags=["kernels"])
    async def explain(body: bodies.ExplainBody) -> bodies.ExplanationBody:
        """Why a spec hits or misses: the nearest cached kernels and every field that differs."""
        question = service.question(body.spec, body.soc_name)
        explanation = await catalog.explain(question.passport)
        return bodies.ExplanationBody(
            key=explanation.key,
            hit=explanation.hit,
            reason=explanation.reason,
            passport=msgspec.to_builtins(question.passport),
            nearest=[
                bodies.NearBody(
                    key=near.key,
                    differences=[
                        bodies.DifferenceBody(
                            path=difference.path, wanted=difference.ours, cached=difference.theirs
                        )
                        for difference in near.differences
                    ],
                )
                for near in explanation.nearest
            ],
        )


def _add_prewarm(app: FastAPI, jobs: PrewarmJobs) -> None:
    @app.post("/v1/prewarm", tags=["prewarm"], status_code=202)
    async def start_prewarm(body: bodies.PrewarmBody) -> bodies.JobBody:
        """Start a job that compiles many kernels behind foreground work; it outlives this call."""
        entries = [PrewarmEntry(spec=entry.spec, soc_name=entry.soc_name) for entry in body.entries]
        return _job(jobs.start(entries, body.label))

    @app.get("/v1/prewarm", tags=["prewarm"])
    async def list_prewarm(page_size: PageSize = 100, page_token: PageToken = "") -> bodies.JobPageBody:
        """Running jobs and the last finished ones, newest first."""
        page, next_token, total = _page(list(reversed(jobs.all())), page_size, page_token)
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
            **_PROBLEMS,
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


def _add_node(app: FastAPI, service: KernelService, readiness: Readiness) -> None:
    @app.get("/v1/environment", tags=["node"])
    async def environment() -> bodies.EnvironmentBody:
        """What decides keys on this node: target, toolchain, generator."""
        return bodies.EnvironmentBody.model_validate(msgspec.to_builtins(service.environment))

    @app.get("/v1/families", tags=["node"])
    async def list_families(page_size: PageSize = 100, page_token: PageToken = "") -> bodies.FamilyPageBody:
        """Kernel families and the JSON Schema of their specs, by name."""
        page, next_token, total = _page(sorted(families()), page_size, page_token)
        return bodies.FamilyPageBody(
            families=[
                bodies.FamilyBody(
                    name=name,
                    summary=families()[name].summary,
                    spec_schema=json_schema(families()[name].spec_type),
                )
                for name in page
            ],
            next_page_token=next_token,
            total=total,
        )

    @app.get("/healthz", tags=["health"])
    async def healthz() -> bodies.HealthBody:
        """The daemon answers."""
        return bodies.HealthBody(status="serving")

    @app.get("/readyz", tags=["health"], responses={503: {"model": bodies.ReadyBody}})
    async def readyz(response: Response) -> bodies.ReadyBody:
        """Compile workers are warm and the store is usable; 503 until then."""
        checks = await readiness()
        ready = all(checks.values())
        response.status_code = 200 if ready else 503
        return bodies.ReadyBody(ready=ready, checks=checks)


def _summary(summary: KernelSummary) -> bodies.KernelSummaryBody:
    return bodies.KernelSummaryBody.model_validate(msgspec.structs.asdict(summary))


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


def _page(items: Sequence[Item], size: int, token: str) -> tuple[Sequence[Item], str, int]:
    """One page of a short sequence, the token of the next, and the total."""
    start = 0
    if token:
        try:
            start = int(base64.urlsafe_b64decode(token.encode()))
        except (ValueError, binascii.Error):
            start = -1
        if not 0 <= start <= len(items):
            raise InvalidRequest(
                "the page token is not one of ours", field="page_token", legal="a next_page_token"
            )
    end = start + size
    more = base64.urlsafe_b64encode(str(end).encode()).decode() if end < len(items) else ""
    return items[start:end], more, len(items)


def _add_error_handlers(app: FastAPI) -> None:
    def problem(document: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
        return Response(
            json_bytes(document),
            status_code=document["status"],
            media_type=PROBLEM_MEDIA_TYPE,
            headers=headers,
        )

    @app.exception_handler(KaasError)
    async def ours(_: Request, error: KaasError) -> Response:
        return problem(problem_document(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        faults = [
            {"field": ".".join(map(str, fault["loc"])), "reason": fault["msg"]}
            for fault in error.errors()[:20]
        ]
        first = faults[0] if faults else {"field": "request", "reason": "malformed"}
        return problem(
            problem_document(
                InvalidRequest(
                    f"{first['field']}: {first['reason']}",
                    field=first["field"],
                    faults=faults,
                )
            )
        )

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers) if error.headers else None
        if error.status_code == 405:
            headers = {"Allow": ", ".join(_allowed(app, request))}
        return problem(http_problem(error.status_code, str(error.detail)), headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        incident = as_kaas_error(error)
        return problem({**problem_document(incident), "status": http_status(incident)})


def _allowed(app: FastAPI, request: Request) -> list[str]:
    """Every method of the path; one route alone knows only its own."""
    return sorted(
        method
        for route in app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    )


def _describe(app: FastAPI) -> None:
    """Put the families' spec schemas and the problem document into the OpenAPI document."""
    spec_types = [family.spec_type for _, family in sorted(families().items())]
    _, specs = msgspec.json.schema_components(spec_types, ref_template="#/components/schemas/{name}")
    one_of = {"oneOf": [{"$ref": f"#/components/schemas/{cls.__name__}"} for cls in spec_types]}
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            components = schema["components"]["schemas"]
            components["Problem"] = _schema_of(bodies.Problem)
            components.update(specs)
            for body in (bodies.CompileBody, bodies.ExplainBody, bodies.PrewarmEntryBody):
                components[body.__name__]["properties"]["spec"] = one_of
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(ref_template="#/components/schemas/{model}")
