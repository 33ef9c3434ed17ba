"""Status: which gRPC status and which HTTP status each error class maps to. One table, both transports.

HTTP statuses of 500 and above are kept for faults of the node itself, never for what a caller sent.
"""

from __future__ import annotations

import logging
import secrets
from http import HTTPStatus
from typing import Any

import grpc
import msgspec

from kaas.proto import errors
from kaas.proto.errors import InternalError, KaasError

log = logging.getLogger(__name__)

ERROR_METADATA_KEY = "kaas-error-bin"
"""Trailing metadata entry that carries the error's record as JSON."""

METADATA_LIMIT = 5000
"""Bytes of a record in trailing metadata; gRPC's own soft limit for all metadata is 8 KiB, in base64."""

PROBLEM_MEDIA_TYPE = "application/problem+json"
"""RFC 9457."""

_Code = grpc.StatusCode

_TABLE: dict[type[KaasError], tuple[grpc.StatusCode, int]] = {
    errors.InvalidSpec: (_Code.INVALID_ARGUMENT, 400),
    errors.UnknownFamily: (_Code.NOT_FOUND, 404),
    errors.DoesNotFit: (_Code.FAILED_PRECONDITION, 422),
    errors.UnsupportedTarget: (_Code.FAILED_PRECONDITION, 422),
    errors.InvalidConfig: (_Code.INVALID_ARGUMENT, 400),
    errors.InvalidManifest: (_Code.INVALID_ARGUMENT, 400),
    errors.InvalidRequest: (_Code.INVALID_ARGUMENT, 400),
    errors.InvalidArgument: (_Code.INVALID_ARGUMENT, 400),
    errors.KernelNotFound: (_Code.NOT_FOUND, 404),
    errors.JobNotFound: (_Code.NOT_FOUND, 404),
    errors.ToolchainMissing: (_Code.FAILED_PRECONDITION, 503),
    errors.CompileFailed: (_Code.FAILED_PRECONDITION, 422),
    errors.CompileTimeout: (_Code.DEADLINE_EXCEEDED, 504),
    errors.CompileOutOfMemory: (_Code.RESOURCE_EXHAUSTED, 503),
    errors.WorkerCrashed: (_Code.UNAVAILABLE, 503),
    errors.DeadlineExceeded: (_Code.DEADLINE_EXCEEDED, 408),
    errors.Overloaded: (_Code.RESOURCE_EXHAUSTED, 429),
    errors.StoreUnavailable: (_Code.UNAVAILABLE, 503),
    errors.StoreFull: (_Code.RESOURCE_EXHAUSTED, 507),
    errors.ArtifactDamaged: (_Code.DATA_LOSS, 503),
    errors.TargetMismatch: (_Code.FAILED_PRECONDITION, 409),
    errors.BundleRefused: (_Code.INVALID_ARGUMENT, 400),
    errors.SignatureRefused: (_Code.PERMISSION_DENIED, 403),
    errors.RegistryFailed: (_Code.UNAVAILABLE, 502),
    errors.RemoteUnavailable: (_Code.UNAVAILABLE, 502),
    errors.NotReady: (_Code.UNAVAILABLE, 503),
    errors.StrictMiss: (_Code.FAILED_PRECONDITION, 409),
    errors.DaemonUnavailable: (_Code.UNAVAILABLE, 503),
    errors.ShuttingDown: (_Code.UNAVAILABLE, 503),
    errors.PermissionDenied: (_Code.PERMISSION_DENIED, 403),
    errors.DeviceError: (_Code.INTERNAL, 500),
    errors.InternalError: (_Code.INTERNAL, 500),
    errors.KaasError: (_Code.UNKNOWN, 500),
}


def _entry(error: KaasError) -> tuple[grpc.StatusCode, int]:
    for cls in type(error).__mro__:
        if cls in _TABLE:
            return _TABLE[cls]
    return _TABLE[KaasError]


def grpc_status(error: KaasError) -> grpc.StatusCode:
    """The gRPC status of an error; a subclass without an entry takes its nearest base's."""
    return _entry(error)[0]


def http_status(error: KaasError) -> int:
    """The HTTP status of an error; a subclass without an entry takes its nearest base's."""
    return _entry(error)[1]


def error_record_json(error: KaasError) -> bytes:
    """The error's record as JSON, whatever its details hold; what JSON cannot spell becomes text."""
    return json_bytes(error.to_record())


def bounded_record_json(error: KaasError, limit: int = METADATA_LIMIT) -> bytes:
    """The record as JSON of at most about ``limit`` bytes: gRPC refuses large metadata.

    Long texts lose their beginning (a log's end says more), then whole details go; code and message stay.
    """
    record = error.to_record()
    for longest in (limit, 2000, 1000, 500, 200):
        encoded = json_bytes(_shortened(record, longest))
        if len(encoded) <= limit:
            return encoded
    bare = {"code": error.code, "message": error.message[:200], "details": {"truncated": True}}
    return json_bytes(bare)


def _shortened(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= longest else "... " + value[-longest:]
    if isinstance(value, dict):
        return {name: _shortened(item, longest) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shortened(item, longest) for item in value]
    return value


def json_bytes(value: Any) -> bytes:
    """JSON of a plain value; floats that JSON cannot spell, lone surrogates and foreign types become text."""
    return msgspec.json.encode(_spellable(value))


def _spellable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_spellable(str(name)): _spellable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_spellable(item) for item in value]
    if value is None or isinstance(value, (bool, float)):
        return value if value is None or value == value else None
    if isinstance(value, int):
        # Beyond 64 bits a number is not portable JSON.
        return (
            value
            if -(2**63) <= value < 2**64
            else str(value)[:80]
            if abs(value) < 10**400
            else "a huge integer"
        )
    return _spellable(str(value))


def problem_document(error: KaasError) -> dict[str, Any]:
    """The RFC 9457 problem document of an error; ``details`` is the record's, as an extension member."""
    status = http_status(error)
    document: dict[str, Any] = {
        "type": f"urn:kaas:error:{error.code}",
        "title": _title(error.code),
        "status": status,
        "detail": error.message,
        "code": error.code,
        "retryable": error.retryable,
        "details": error.details,
    }
    if error.hint:
        document["hint"] = error.hint
    return document


def http_problem(status: int, detail: str) -> dict[str, Any]:
    """A problem document for what has no error class: an unknown route, a wrong method."""
    try:
        title = HTTPStatus(status).phrase
    except ValueError:
        title = "Error"
    return {"type": "about:blank", "title": title, "status": status, "detail": detail}


def _title(code: str) -> str:
    return code.replace("_", " ").capitalize()


def as_kaas_error(error: BaseException) -> KaasError:
    """The error itself if it is ours; otherwise a logged incident whose id finds the traceback."""
    if isinstance(error, KaasError):
        return error
    incident = secrets.token_hex(6)
    log.error("incident %s", incident, exc_info=error)
    return InternalError(
        f"internal error, incident {incident}",
        hint="the daemon's log holds the traceback under that incident number",
        incident=incident,
    )
