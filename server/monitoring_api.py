"""The monitoring app: probes and metrics, for whoever may see but not touch.

A cluster's probes and its Prometheus come over TCP, where nobody says who they are; here they find nothing
that compiles, changes or deletes anything.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from kaas.server.coverage import Coverages
from kaas.server.metrics import MEDIA_TYPE, Readiness, Scrape
from kaas.server.readiness import readiness_document
from kaas.server.status import PROBLEM_MEDIA_TYPE, json_bytes


def create_monitoring_app(readiness: Readiness, scrape: Scrape, coverages: Coverages) -> Starlette:
    """``GET`` of ``/healthz``, ``/readyz`` and ``/metrics``, as the operators' REST answers them."""

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "serving"})

    async def readyz(_: Request) -> Response:
        document = readiness_document(await readiness(), coverages.of_gate())
        media_type = "application/json" if document["ready"] else PROBLEM_MEDIA_TYPE
        return Response(json_bytes(document), document.get("status", 200), media_type=media_type)

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(await scrape(), media_type=MEDIA_TYPE)

    return Starlette(
        routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
    )
