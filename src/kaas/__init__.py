"""kaas: kernel-as-a-service for Huawei Ascend NPUs.

``import kaas`` loads nothing else; each public name loads its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.client.api import aget_kernel as aget_kernel
    from kaas.client.api import get_kernel as get_kernel
    from kaas.client.handle import KernelHandle as KernelHandle
    from kaas.kernel_library.families.gemm import GemmSpec as GemmSpec
    from kaas.kernel_library.families.rmsnorm import RmsNormSpec as RmsNormSpec
    from kaas.kernel_library.gemm_fields import GemmTile as GemmTile
    from kaas.kernel_library.registry import parse_spec as parse_spec
    from kaas.kernel_library.spec import KernelSpec as KernelSpec
    from kaas.proto.errors import ArtifactDamaged as ArtifactDamaged
    from kaas.proto.errors import CompileFailed as CompileFailed
    from kaas.proto.errors import CompileOutOfMemory as CompileOutOfMemory
    from kaas.proto.errors import CompileTimeout as CompileTimeout
    from kaas.proto.errors import DaemonUnavailable as DaemonUnavailable
    from kaas.proto.errors import DeadlineExceeded as DeadlineExceeded
    from kaas.proto.errors import DeviceError as DeviceError
    from kaas.proto.errors import DoesNotFit as DoesNotFit
    from kaas.proto.errors import InternalError as InternalError
    from kaas.proto.errors import InvalidArgument as InvalidArgument
    from kaas.proto.errors import InvalidConfig as InvalidConfig
    from kaas.proto.errors import InvalidManifest as InvalidManifest
    from kaas.proto.errors import InvalidRequest as InvalidRequest
    from kaas.proto.errors import InvalidSpec as InvalidSpec
    from kaas.proto.errors import JobNotFound as JobNotFound
    from kaas.proto.errors import KaasError as KaasError
    from kaas.proto.errors import KernelNotFound as KernelNotFound
    from kaas.proto.errors import Overloaded as Overloaded
    from kaas.proto.errors import PermissionDenied as PermissionDenied
    from kaas.proto.errors import ShuttingDown as ShuttingDown
    from kaas.proto.errors import StoreFull as StoreFull
    from kaas.proto.errors import StoreUnavailable as StoreUnavailable
    from kaas.proto.errors import StrictMiss as StrictMiss
    from kaas.proto.errors import TargetMismatch as TargetMismatch
    from kaas.proto.errors import ToolchainMissing as ToolchainMissing
    from kaas.proto.errors import UnknownFamily as UnknownFamily
    from kaas.proto.errors import UnsupportedTarget as UnsupportedTarget
    from kaas.proto.errors import WorkerCrashed as WorkerCrashed

    __version__: str

_MODULES = {
    "aget_kernel": "kaas.client.api",
    "get_kernel": "kaas.client.api",
    "KernelHandle": "kaas.client.handle",
    "GemmSpec": "kaas.kernel_library.families.gemm",
    "GemmTile": "kaas.kernel_library.gemm_fields",
    "RmsNormSpec": "kaas.kernel_library.families.rmsnorm",
    "parse_spec": "kaas.kernel_library.registry",
    "KernelSpec": "kaas.kernel_library.spec",
}
_ERRORS = (
    "ArtifactDamaged",
    "CompileFailed",
    "CompileOutOfMemory",
    "CompileTimeout",
    "DaemonUnavailable",
    "DeadlineExceeded",
    "DeviceError",
    "DoesNotFit",
    "InternalError",
    "InvalidArgument",
    "InvalidConfig",
    "InvalidManifest",
    "InvalidRequest",
    "InvalidSpec",
    "JobNotFound",
    "KaasError",
    "KernelNotFound",
    "Overloaded",
    "PermissionDenied",
    "ShuttingDown",
    "StoreFull",
    "StoreUnavailable",
    "StrictMiss",
    "TargetMismatch",
    "ToolchainMissing",
    "UnknownFamily",
    "UnsupportedTarget",
    "WorkerCrashed",
)
_MODULES |= dict.fromkeys(_ERRORS, "kaas.proto.errors")


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is not None:
        from importlib import import_module

        value = getattr(import_module(module), name)
    elif name == "__version__":
        from importlib.metadata import version

        value = version("ascend-kaas")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, "__version__"})


# Spelt out for star imports and for editors; a test holds it equal to the table above.
__all__ = [
    "ArtifactDamaged",
    "CompileFailed",
    "CompileOutOfMemory",
    "CompileTimeout",
    "DaemonUnavailable",
    "DeadlineExceeded",
    "DeviceError",
    "DoesNotFit",
    "GemmSpec",
    "GemmTile",
    "InternalError",
    "InvalidArgument",
    "InvalidConfig",
    "InvalidManifest",
    "InvalidRequest",
    "InvalidSpec",
    "JobNotFound",
    "KaasError",
    "KernelHandle",
    "KernelNotFound",
    "KernelSpec",
    "Overloaded",
    "PermissionDenied",
    "RmsNormSpec",
    "ShuttingDown",
    "StoreFull",
    "StoreUnavailable",
    "StrictMiss",
    "TargetMismatch",
    "ToolchainMissing",
    "UnknownFamily",
    "UnsupportedTarget",
    "WorkerCrashed",
    "aget_kernel",
    "get_kernel",
    "parse_spec",
]
