"""The error taxonomy: one base class, one stable code per kind, alike in every process.

An error crosses a process border as a record (:meth:`KaasError.to_record`) and is raised again as the
same class on the other side (:func:`error_from_record`). Which gRPC and HTTP status a class maps to is
the transports' business and lives in ``kaas.server.status``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class KaasError(Exception):
    """Base of every error that kaas raises on purpose.

    ``details`` holds JSON-able facts that a program can act on (field, legal values, log tail ...);
    ``hint`` is the next thing a person should do.
    """

    code: ClassVar[str] = "kaas_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = {name: value for name, value in details.items() if value is not None}

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def to_record(self) -> dict[str, Any]:
        """The JSON-able form that crosses process borders."""
        record: dict[str, Any] = {"code": self.code, "message": self.message, "details": self.details}
        if self.hint:
            record["hint"] = self.hint
        return record


class InvalidSpec(KaasError):
    """A spec is malformed or illegal; ``details`` names ``field`` and the ``legal`` values."""

    code = "invalid_spec"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        legal: Sequence[Any] | str | None = None,
        **details: Any,
    ) -> None:
        if legal is not None and not isinstance(legal, str):
            legal = list(legal)
        super().__init__(message, field=field, legal=legal, **details)


class UnknownFamily(InvalidSpec):
    """No kernel family has that name; ``legal`` lists the families and ``near`` the likely ones."""

    code = "unknown_family"


class DoesNotFit(InvalidSpec):
    """A legal spec cannot fit the target: ``buffer`` exceeds its size by ``excess_bytes``."""

    code = "does_not_fit"


class UnsupportedTarget(KaasError):
    """The SoC is unknown or no kernel can be built for it; ``near`` lists similar names."""

    code = "unsupported_target"


class InvalidConfig(KaasError):
    """A configuration value is unknown or illegal; names the ``field`` and its ``source``."""

    code = "invalid_config"


class InvalidManifest(KaasError):
    """A pre-warm manifest is malformed; names the ``line`` or ``entry`` at fault."""

    code = "invalid_manifest"


class InvalidRequest(KaasError):
    """A request outside the spec itself is malformed; names the ``field`` and the ``legal`` values."""

    code = "invalid_request"


class KernelNotFound(KaasError):
    """No cached kernel has that key."""

    code = "kernel_not_found"


class JobNotFound(KaasError):
    """No pre-warm job has that id."""

    code = "job_not_found"


class ToolchainMissing(KaasError):
    """Neither a usable CANN toolkit nor what the CPU twin needs was found."""

    code = "toolchain_missing"


class CompileFailed(KaasError):
    """A compile failed; ``details``: ``stage``, ``log_tail``, ``source_excerpt``, ``deterministic``."""

    code = "compile_failed"


class CompileTimeout(KaasError):
    """A compile was killed at its wall-clock limit (``limit_s``, ``stage``)."""

    code = "compile_timeout"
    retryable = True


class CompileOutOfMemory(KaasError):
    """A compile was killed at its memory limit (``limit_bytes``, ``stage``)."""

    code = "compile_out_of_memory"
    retryable = True


class WorkerCrashed(KaasError):
    """A compile worker died before it answered (``signal`` or ``exit_status``)."""

    code = "worker_crashed"
    retryable = True


class DeadlineExceeded(KaasError):
    """The caller's deadline passed first; the compile may still finish for the next caller."""

    code = "deadline_exceeded"
    retryable = True


class Overloaded(KaasError):
    """The admission queue is full."""

    code = "overloaded"
    retryable = True


class StoreUnavailable(KaasError):
    """The store cannot be used at all (missing, not a directory, not writable by the daemon)."""

    code = "store_unavailable"


class StoreFull(KaasError):
    """The store refused a publication: no space, no inodes, or a hard limit."""

    code = "store_full"
    retryable = True


class ArtifactDamaged(KaasError):
    """An artifact file failed verification; names the ``part`` and what differs."""

    code = "artifact_damaged"
    retryable = True


class TargetMismatch(KaasError):
    """An artifact belongs to another SKU, core count, CANN or toolchain kind; names the ``field``."""

    code = "target_mismatch"


class BundleRefused(KaasError):
    """A bundle is not one, or was altered; names the ``reason`` and the ``entry`` at fault."""

    code = "bundle_refused"


class SignatureRefused(KaasError):
    """A foreign artifact's signature is missing, wrong or of nobody trusted; names ``reason`` and ``key``."""

    code = "signature_refused"


class RegistryFailed(KaasError):
    """An OCI registry refused or failed a request; names ``registry`` and, if it answered, the ``status``."""

    code = "registry_failed"
    retryable = True


class RemoteUnavailable(KaasError):
    """A remote tier did not take a kernel; names ``tier`` and ``key``."""

    code = "remote_unavailable"
    retryable = True


class NotReady(KaasError):
    """A node is not ready yet; ``details``: its ``checks``, and the ``coverage`` (0 to 1) so far."""

    code = "not_ready"
    retryable = True


class StrictMiss(KaasError):
    """Strict mode: the kernel is not in the store and compiling on request is not allowed."""

    code = "strict_miss"


class DaemonUnavailable(KaasError):
    """No daemon answers at the socket; the hint is the command that starts one."""

    code = "daemon_unavailable"
    retryable = True


class ShuttingDown(KaasError):
    """The daemon is stopping and takes no new work."""

    code = "shutting_down"
    retryable = True


class PermissionDenied(KaasError):
    """The caller may not use the socket or the store."""

    code = "permission_denied"


class InvalidArgument(KaasError):
    """A launch argument has the wrong dtype, shape, layout or device; names the ``argument``."""

    code = "invalid_argument"


class DeviceError(KaasError):
    """The ACL runtime refused or failed a call; ``acl_code`` and the runtime's own message."""

    code = "device_error"


class InternalError(KaasError):
    """A bug in kaas; ``incident`` finds the traceback in the daemon's log."""

    code = "internal"


def _subclasses(cls: type[KaasError]) -> dict[str, type[KaasError]]:
    found = {cls.code: cls}
    for child in cls.__subclasses__():
        found.update(_subclasses(child))
    return found


def error_from_record(record: Mapping[str, Any]) -> KaasError:
    """Rebuild the error that :meth:`KaasError.to_record` described; unknown codes become the base class."""
    code = str(record.get("code", KaasError.code))
    cls = _subclasses(KaasError).get(code)
    message = str(record.get("message", code))
    hint = record.get("hint")
    error = (cls or KaasError)(message, hint=None if hint is None else str(hint))
    details = record.get("details")
    if isinstance(details, Mapping):
        error.details = {str(name): value for name, value in details.items()}
    if cls is None:
        error.details["remote_code"] = code
    return error
