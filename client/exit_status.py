"""Exit statuses of the command line: one per kind of trouble, so that scripts can tell them apart."""

from __future__ import annotations

from kaas.proto import errors
from kaas.proto.errors import KaasError

FAILED = 1
USAGE = 2
NOT_FOUND = 3
NO_DAEMON = 4
TOO_LATE = 5
NODE_TROUBLE = 6
INTERNAL = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

_BY_CLASS: dict[type[KaasError], int] = {
    errors.InvalidSpec: USAGE,
    errors.UnsupportedTarget: USAGE,
    errors.InvalidConfig: USAGE,
    errors.InvalidManifest: USAGE,
    errors.InvalidRequest: USAGE,
    errors.KernelNotFound: NOT_FOUND,
    errors.JobNotFound: NOT_FOUND,
    errors.StrictMiss: NOT_FOUND,
    errors.DaemonUnavailable: NO_DAEMON,
    errors.ShuttingDown: NO_DAEMON,
    errors.Overloaded: NO_DAEMON,
    errors.PermissionDenied: NO_DAEMON,
    errors.DeadlineExceeded: TOO_LATE,
    errors.CompileTimeout: TOO_LATE,
    errors.RegistryFailed: NODE_TROUBLE,
    errors.RemoteUnavailable: NODE_TROUBLE,
    errors.ToolchainMissing: NODE_TROUBLE,
    errors.StoreUnavailable: NODE_TROUBLE,
    errors.StoreFull: NODE_TROUBLE,
    errors.ArtifactDamaged: NODE_TROUBLE,
    errors.TargetMismatch: NODE_TROUBLE,
    errors.DeviceError: NODE_TROUBLE,
    errors.InternalError: INTERNAL,
}


def exit_status(error: KaasError) -> int:
    """The exit status of an error's class, or of its nearest base's."""
    for cls in type(error).__mro__:
        if cls in _BY_CLASS:
            return _BY_CLASS[cls]
    return FAILED
