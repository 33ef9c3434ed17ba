"""REST routes on the node: environment, kernel families, health."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse

import kaas.server.rest_models as bodies
from kaas.kernel_library.composite import Composite
from kaas.kernel_library.family import Family
from kaas.kernel_library.kernel_pages import composite_text, page_text
from kaas.kernel_library.registry import composite_named, composite_names, families, family_named, json_schema
from kaas.kernel_library.spec import Spec
from kaas.server.coverage import Coverages
from kaas.server.metrics import MEDIA_TYPE, Readiness, Scrape
from kaas.server.paging import page_of
from kaas.server.readiness import readiness_document
from kaas.server.rest_parameters import FamilyName, PageSize, PageToken
from kaas.server.service import KernelService
from kaas.server.status import PROBLEM_MEDIA_TYPE, json_bytes


def add_node_routes(
    app: FastAPI, service: KernelService, readiness: Readiness, scrape: Scrape, coverages: Coverages
) -> None:
    """The node: what it is, what it can compile, how it is."""

    @app.get("/v1/environment", tags=["node"])
    async def environment() -> bodies.EnvironmentBody:
        """What decides keys on this node: target, toolchain, generator."""
        return bodies.EnvironmentBody.model_validate(msgspec.to_builtins(service.environment))

    @app.get("/v1/families", tags=["node"])
    async def list_families(page_size: PageSize = 100, page_token: PageToken = "") -> bodies.FamilyPageBody:
        """Kernel families, composites, and the JSON Schema of their specs, by name."""
        page, next_token, total = page_of(sorted({*families(), *composite_names()}), page_size, page_token)
        return bodies.FamilyPageBody(
            families=[_family(name) for name in page], next_page_token=next_token, total=total
        )

    @app.get("/v1/families/{name}", tags=["node"])
    async def show_family(name: FamilyName) -> bodies.FamilyDetailBody:
        """One kernel family or composite: spec schema, arguments, reference, tolerance, sources."""
        examples: Sequence[Spec] = ()
        serves: Sequence[str] = ()
        if name in composite_names():
            composite = composite_named(name)
            page, examples = composite_text(composite), composite.examples
        else:
            family = family_named(name)
            page = page_text(family)
            if family.page:
                examples, serves = family.page.examples, family.page.serves
        return bodies.FamilyDetailBody(
            **dict(_family(name)),
            page=page,
            examples=[spec.to_record() for spec in examples],
            serves=list(serves),
        )

    @app.get("/healthz", tags=["health"])
    async def healthz() -> bodies.HealthBody:
        """The daemon answers."""
        return bodies.HealthBody(status="serving")

    @app.get("/readyz", tags=["health"], response_model=bodies.ReadyBody)
    async def readyz() -> Response:
        """Workers are warm, the store is usable, enough of `ready_manifest` is here; 503 until then."""
        document = readiness_document(await readiness(), coverages.of_gate())
        if document["ready"]:
            return Response(json_bytes(document), media_type="application/json")
        return Response(json_bytes(document), document["status"], media_type=PROBLEM_MEDIA_TYPE)

    @app.get(
        "/metrics",
        tags=["health"],
        response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {"example": "kaas_ready 1\n"}}}},
    )
    async def metrics() -> Response:
        """Counters and gauges in the Prometheus text format."""
        return PlainTextResponse(await scrape(), media_type=MEDIA_TYPE)


def _family(name: str) -> bodies.FamilyBody:
    known: Family | Composite = composite_named(name) if name in composite_names() else family_named(name)
    return bodies.FamilyBody(
        name=known.name,
        kind="composite" if name in composite_names() else "kernel",
        summary=known.summary,
        spec_schema=json_schema(known.spec_type),
    )
