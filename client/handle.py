"""KernelHandle: a compiled kernel that can be called."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from kaas.client import device as device_module
from kaas.proto.errors import ArtifactDamaged, PermissionDenied, StoreUnavailable

if TYPE_CHECKING:
    from kaas.cache.artifact import Artifact
    from kaas.client.device import Device
    from kaas.client.launch_plan import LaunchPlan
    from kaas.proto.errors import KaasError
    from kaas.proto.launch import LaunchMetadata
    from kaas.proto.passport import KernelKey, Passport


Origin = Literal["store", "hit", "compiled", "joined", "fetched"]
"""Where a process got a kernel: read from the store by itself, or what the daemon did for it."""


Replace = Callable[["KernelKey", "KaasError", bool], "Artifact"]
"""Gives the very same kernel, verified whole, for one that cannot be used; ``True``: without a compile."""


class _Loaded:
    """What a process has once the kernel was launched: its plan, device and loaded functions by device."""

    __slots__ = ("block_count", "device", "dynamic_ub_bytes", "functions", "generation", "plan", "size")

    def __init__(self, plan: LaunchPlan, device: Device) -> None:
        self.plan = plan
        self.size = plan.size
        self.device = device
        self.block_count = plan.launch.block_count
        self.dynamic_ub_bytes = plan.launch.dynamic_ub_bytes
        self.functions: dict[int, int] = {}
        self.generation = device_module.generation


class KernelHandle:
    """One kernel, and always that one: what it launches was verified whole and is the process's own.

    One that comes from the store in the default mode is verified at its first use; should it prove damaged
    then, it is replaced by the same kernel before anything is launched, or the use raises why not.
    Thread-safe; usable in a forked child, which loads the kernel again at its first launch.
    """

    def __init__(
        self,
        artifact: Artifact,
        device: Callable[[], Device],
        origin: Origin = "store",
        replace: Replace | None = None,
    ) -> None:
        self.origin: Origin = origin
        self.memo_hits = 0
        """How often get_kernel gave this handle again."""
        self._artifact = artifact
        self._find_device = device
        self._replace = replace
        self._loaded: _Loaded | None = None

    @property
    def key(self) -> KernelKey:
        """SHA-256 (hex) of the passport."""
        return self._artifact.key

    @property
    def is_verified(self) -> bool:
        """Whether every byte of the kernel was verified, which it is before its first use."""
        return self._artifact.is_taken

    def verify(self, *, strict: bool = False) -> None:
        """Read and verify the kernel now, if that was not done yet, rather than at its first use.

        A damaged one is replaced by the same kernel, which is not compiled for that when ``strict``. Raises
        what :func:`kaas.get_kernel` raises, or :class:`TargetMismatch` when this node makes another one now.
        """
        artifact = self._artifact
        try:
            artifact.take()
        except (ArtifactDamaged, PermissionDenied, StoreUnavailable) as error:
            if self._replace is None:
                raise
            found = self._replace(artifact.key, error, strict)
            if self._artifact is artifact:  # else another thread was first
                self._artifact = found

    @property
    def _kernel(self) -> Artifact:
        self.verify()
        return self._artifact

    @property
    def passport(self) -> Passport:
        """Everything that decided the kernel's bytes."""
        return self._kernel.passport

    @property
    def launch(self) -> LaunchMetadata:
        """Entry, grid, and the parameters in call order."""
        return self._kernel.launch

    @property
    def choices(self) -> Mapping[str, Any]:
        """What the builder chose for this target (tile sizes, stages ...)."""
        return self._kernel.choices

    @property
    def source(self) -> str:
        """The Ascend C source that was compiled."""
        return self._kernel.source

    @property
    def log(self) -> str:
        """The compile log."""
        return self._kernel.log

    @property
    def compile_seconds(self) -> float:
        """How long the compile took that made the kernel, whenever that was."""
        return self._kernel.compile_seconds

    def __call__(self, *arguments: Any, stream: Any = None) -> Any:
        """Launch on tensors in the order of ``launch.parameters``; returns the written ones.

        Tensors are torch tensors on the device, or on the twin CPU tensors and NumPy arrays: row-major,
        contiguous, with the dtypes and shapes of ``launch.parameters``; a dimension's symbol has one value
        per call. Outputs are written in place; autograd does not see it. ``stream`` is a torch_npu stream or
        an ACL stream's address; by default torch_npu's current stream. On the twin without a stream the
        result is ready on return. Nothing is launched when all outputs are empty.

        Raises :class:`InvalidArgument` naming the argument and what is expected, :class:`TargetMismatch`
        when the kernel was built for another part, :class:`DeviceError` when the runtime refuses.
        """
        loaded = self._loaded
        if loaded is None or loaded.generation != device_module.generation:
            loaded = self._load()
        device = loaded.device
        place, index, raw_stream = device.current(stream)
        block = loaded.plan.pack(arguments, place)
        if block is not None:
            function = loaded.functions.get(index) or self._load_function(loaded, index)
            runtime = device.runtime
            runtime.launch(
                function, loaded.block_count, block, loaded.size, raw_stream, loaded.dynamic_ub_bytes
            )
            if raw_stream is None:
                runtime.synchronize(None)
        return loaded.plan.outputs(arguments)

    def _load(self) -> _Loaded:
        from kaas.client.launch_plan import LaunchPlan

        device = self._find_device()
        device.require(self.passport)
        # Two threads may both come here; the later plan wins and both are right.
        loaded = self._loaded = _Loaded(LaunchPlan(self.launch), device)
        return loaded

    def _load_function(self, loaded: _Loaded, index: int) -> int:
        with _load_lock:
            if index not in loaded.functions:
                runtime = loaded.device.runtime
                binary = runtime.load(self._kernel.image)
                loaded.functions[index] = runtime.function(binary, self.launch.entry)
            return loaded.functions[index]

    def __repr__(self) -> str:
        target = self.passport.target
        spec = self.passport.spec
        return f"<KernelHandle {spec.get('family')} {self.key[:12]} for {target.soc_name}>"


_load_lock = threading.Lock()


def _renew_lock_in_child() -> None:
    global _load_lock
    _load_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock_in_child)
