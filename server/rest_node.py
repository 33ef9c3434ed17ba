"""REST routes on the node: environment, kernel families, health."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from fastapi import FastAPI, Response

import kaas.server.rest_models as bodies
from kaas.kernel_library.composite import Composite
from kaas.kernel_library.family import Family
from kaas.kernel_library.kernel_pages import composite_text, page_text
from kaas.kernel_library.registry import composite_named, composite_names, families, family_named, json_schema
from kaas.kernel_library.spec import Spec
from kaas.server.paging import page_of
from kaas.server.rest_parameters import FamilyName, PageSize, PageToken
from kaas.server.service import KernelService

Readiness = Callable[[], Awaitable[dict[str, bool]]]


def add_node_routes(app: FastAPI, service: KernelService, readiness: Readiness) -> None:
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

    @app.get("/readyz", tags=["health"], responses={503: {"model": bodies.ReadyBody}})
    async def readyz(response: Response) -> bodies.ReadyBody:
        """Compile workers are warm and the store is usable; 503 until then."""
        checks = await readiness()
        ready = all(checks.values())
        response.status_code = 200 if ready else 503
        return bodies.ReadyBody(ready=ready, checks=checks)


def _family(name: str) -> bodies.FamilyBody:
    known: Family | Composite = composite_named(name) if name in composite_names() else family_named(name)
    return bodies.FamilyBody(
        name=known.name,
        kind="composite" if name in composite_names() else "kernel",
        summary=known.summary,
        spec_schema=json_schema(known.spec_type),
    )
