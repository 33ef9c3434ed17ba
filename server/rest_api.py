"""REST for operators: what is cached, why something missed, compile and pre-warm. Thin over the service."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

import kaas.server.rest_models as bodies
from kaas.kernel_library.registry import composite_named, composite_names, families
from kaas.kernel_library.spec import Spec
from kaas.proto.errors import InvalidRequest, KaasError
from kaas.server.catalog import Catalog
from kaas.server.coverage import Coverages
from kaas.server.metrics import Readiness, Scrape
from kaas.server.negative_results import NegativeResults
from kaas.server.prewarm import PrewarmJobs
from kaas.server.rest_coverage import add_coverage_routes
from kaas.server.rest_failures import add_failure_routes
from kaas.server.rest_kernels import add_kernel_routes
from kaas.server.rest_node import add_node_routes
from kaas.server.rest_parameters import PROBLEMS, refuse_unknown_parameters
from kaas.server.rest_prewarm import add_prewarm_routes
from kaas.server.rest_store import add_store_routes
from kaas.server.service import KernelService
from kaas.server.status import (
    PROBLEM_MEDIA_TYPE,
    as_kaas_error,
    http_problem,
    http_status,
    json_bytes,
    problem_document,
)
from kaas.server.store_service import StoreService


def create_app(
    service: KernelService,
    catalog: Catalog,
    jobs: PrewarmJobs,
    failures: NegativeResults,
    readiness: Readiness,
    version: str,
    store: StoreService,
    scrape: Scrape,
    coverages: Coverages,
) -> FastAPI:
    """The ASGI app; the guard and the listener are the caller's business."""
    app = FastAPI(
        title="kaas",
        summary="Kernels for Ascend NPUs: what is cached, why it missed, compile and pre-warm",
        version=version,
        docs_url=None,
        redoc_url=None,
        responses=PROBLEMS,
        redirect_slashes=False,
        dependencies=[Depends(refuse_unknown_parameters)],
    )
    app.state.jobs = jobs
    _add_error_handlers(app)
    add_kernel_routes(app, service, catalog)
    add_failure_routes(app, failures)
    add_prewarm_routes(app, jobs)
    add_store_routes(app, store)
    add_node_routes(app, service, readiness, scrape, coverages)
    add_coverage_routes(app, coverages)
    _describe(app)
    return app


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
        if error.status_code == 400:  # a body that is no JSON, or nested beyond reason
            return problem(
                problem_document(InvalidRequest(str(error.detail), field="body", legal="a JSON object"))
            )
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
    kernels: list[type[Spec]] = [family.spec_type for _, family in sorted(families().items())]
    several: list[type[Spec]] = [composite_named(name).spec_type for name in composite_names()]
    _, specs = msgspec.json.schema_components(kernels + several, ref_template="#/components/schemas/{name}")
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            components = schema["components"]["schemas"]
            components["Problem"] = _schema_of(bodies.Problem)
            components.update(specs)
            for body, legal in (
                (bodies.CompileBody, kernels),
                (bodies.ExplainBody, kernels),
                (bodies.PrewarmEntryBody, kernels + several),
            ):
                one_of = [{"$ref": f"#/components/schemas/{cls.__name__}"} for cls in legal]
                components[body.__name__]["properties"]["spec"] = {"oneOf": one_of}
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(ref_template="#/components/schemas/{model}")
