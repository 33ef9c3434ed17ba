"""REST routes on kernels: list, describe, source, log, compile, explain."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import FastAPI, Query
from fastapi.responses import PlainTextResponse

import kaas.server.rest_models as bodies
from kaas.server.catalog import Catalog, KernelFilter, KernelSummary
from kaas.server.kernel_request import KernelRequest
from kaas.server.rest_failures import failure_body
from kaas.server.rest_parameters import PROBLEMS, Filter, Key, PageSize, PageToken
from kaas.server.scheduler import Priority
from kaas.server.service import KernelService


def add_kernel_routes(app: FastAPI, service: KernelService, catalog: Catalog) -> None:
    """Kernels: cached, coming, compiled on request, explained."""

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
        """Kernels that are coming, those whose compile failed, and cached ones, newest first."""
        page = await catalog.page(
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
            artifact_path=str(kernel.path or ""),
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
            KernelRequest(
                spec=body.spec,
                soc_name=body.soc_name,
                priority=Priority[body.priority.upper()],
                timeout_s=body.timeout_s,
                client="rest",
            )
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
            failure=failure_body(explanation.failure) if explanation.failure else None,
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


def _text_of(example: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {"text/plain": {"example": example}}}, **PROBLEMS}


def _summary(summary: KernelSummary) -> bodies.KernelSummaryBody:
    return bodies.KernelSummaryBody.model_validate(msgspec.structs.asdict(summary))
