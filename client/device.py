"""Device: the NPU (or its CPU twin) that this process launches on, and whether a kernel belongs on it."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from kaas.proto.errors import InvalidArgument, TargetMismatch
from kaas.proto.passport import SCHEMA_VERSION

if TYPE_CHECKING:
    from kaas.client.acl import AclRuntime
    from kaas.proto.environment import Environment
    from kaas.proto.passport import Passport


class Device:
    """The live device through its ACL runtime.

    The twin is told to be the environment's target first, so that it refuses another SKU's kernels as the
    part it stands for would.
    """

    def __init__(self, runtime: AclRuntime, environment: Environment) -> None:
        self.runtime = runtime
        self.is_twin = runtime.is_twin
        self._environment = environment
        if self.is_twin:
            target = environment.target
            runtime.configure_twin(target.soc_name, target.cube_cores, target.vector_cores)

    def require(self, passport: Passport) -> None:
        """Raise :class:`TargetMismatch`, naming the field, unless the kernel was built for this device."""
        info = self.runtime.device_info
        toolchain, target = passport.toolchain, passport.target
        arch = None if info.npu_arch is None else f"dav-{info.npu_arch}"
        for field, built_for, here in (
            ("schema_version", passport.schema_version, SCHEMA_VERSION),
            ("toolchain.kind", toolchain.kind, "twin" if self.is_twin else "cann"),
            ("toolchain.cann_version", toolchain.cann_version, self._environment.toolchain.cann_version),
            # Of this process, not of whoever published the environment: a store may be mounted elsewhere.
            ("toolchain.host_arch", toolchain.host_arch, os.uname().machine),
            ("target.soc_name", target.soc_name, self.runtime.soc_name),
            ("target.npu_arch", target.npu_arch, arch),
            ("target.cube_cores", target.cube_cores, info.cube_cores),
            ("target.vector_cores", target.vector_cores, info.vector_cores),
        ):
            # A number that the runtime does not tell cannot differ.
            if here is not None and _folded(built_for) != _folded(here):
                raise TargetMismatch(
                    f"this kernel was built for {field} {built_for}, this device has {here}",
                    hint="ask for the kernel without soc_name, or launch it on the part it was built for",
                    field=field,
                    built_for=built_for,
                    here=here,
                )

    def current(self, stream: Any) -> tuple[str, int, int | None]:
        """Where tensors must live, the device's index, and the stream to launch on.

        ``stream`` is ``None`` (the current one), a raw ACL stream, or a torch_npu stream.
        """
        raw = getattr(stream, "npu_stream", stream)
        if raw is not None and (type(raw) is not int or raw < 0):
            raise InvalidArgument(
                f"stream is {raw if type(raw) is int else 'a ' + type(stream).__qualname__}; expected: None, "
                "a torch_npu stream, or an ACL stream's address as int",
                argument="stream",
                expected="None, a torch_npu stream, or an ACL stream's address as int",
            )
        if self.is_twin:
            return "cpu", 0, raw
        npu = getattr(sys.modules.get("torch"), "npu", None)
        if npu is None:
            raise InvalidArgument(
                "a launch on an NPU takes torch_npu tensors, and torch_npu is not imported",
                argument="stream",
                hint="import torch_npu before the first launch",
            )
        index = int(npu.current_device())
        return f"npu:{index}", index, raw if raw is not None else int(npu.current_stream().npu_stream)


def _folded(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


generation = 0
"""Grows in every forked child: what the parent loaded on a device is not the child's."""

_devices: dict[str, Device] = {}
_lock = threading.Lock()


def open_device(environment: Environment) -> Device:
    """The process's device for this node's ACL library. Raises :class:`DeviceError` when it is unusable."""
    library = environment.locality.acl_library
    with _lock:
        device = _devices.get(library)
        if device is None:
            from kaas.client.acl import AclRuntime

            device = _devices[library] = Device(AclRuntime(library), environment)
        return device


def _forget_in_child() -> None:
    global generation, _lock
    generation += 1
    _lock = threading.Lock()
    _devices.clear()


os.register_at_fork(after_in_child=_forget_in_child)
