"""Parameters, paging and problem responses that REST routes share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request
from fastapi.routing import APIRoute

import kaas.server.rest_models as bodies
from kaas.proto.errors import InvalidRequest
from kaas.server.paging import MAX_PAGE
from kaas.server.status import PROBLEM_MEDIA_TYPE

Key = Annotated[
    str,
    Path(
        description="the full key, or an unambiguous prefix of at least 6 digits",
        pattern=r"^[0-9a-f]{6,64}$",
        examples=[bodies.KEY],
    ),
]
FamilyName = Annotated[str, Path(max_length=80, examples=["gemm"])]
JobId = Annotated[str, Path(max_length=64, examples=["9f86d081884c7d65"])]
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE)]
PageToken = Annotated[str, Query(max_length=512, description="`next_page_token` of the page before")]
Filter = Annotated[str, Query(max_length=200)]


_PROBLEM: dict[str, Any] = {
    "description": "RFC 9457 problem document",
    "content": {
        PROBLEM_MEDIA_TYPE: {
            "schema": {"$ref": "#/components/schemas/Problem"},
            "example": bodies.Problem.model_config["json_schema_extra"]["examples"][0],  # type: ignore[index]
        }
    },
}
PROBLEMS: dict[int | str, dict[str, Any]] = {"4XX": _PROBLEM, "5XX": _PROBLEM}


async def refuse_unknown_parameters(request: Request) -> None:
    """A misspelt filter must not silently list everything."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = {parameter.alias for parameter in route.dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise InvalidRequest(f"there is no parameter {name[:80]!r}", field=name[:80], legal=sorted(known))
