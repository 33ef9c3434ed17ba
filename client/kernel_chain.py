"""KernelChain: a composite's kernels, called together by the composite's own argument names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaas.proto.errors import InvalidArgument

if TYPE_CHECKING:
    from kaas.client.handle import KernelHandle
    from kaas.kernel_library.composite import Stage
    from kaas.proto.launch import Parameter


def _seen_as(parameter: Parameter, value: Any) -> Any:
    """A tensor with the dimensions of 1 that this kernel's shape has and another kernel's leaves out."""
    shape = parameter.shape
    without_ones = sum(extent != 1 for extent in shape)
    if parameter.role == "scalar" or not 0 < getattr(value, "ndim", 0) == without_ones < len(shape):
        return value
    return value[tuple(None if extent == 1 else slice(None) for extent in shape)]


class KernelChain:
    """The kernels of one composite, in the order of their launches. Thread-safe, usable in a forked child.

    Nothing is allocated: what one stage writes and a later one reads is an argument like any other.
    """

    def __init__(self, stages: tuple[Stage, ...], handles: tuple[KernelHandle, ...]) -> None:
        self._stages = stages
        self.handles: Mapping[str, KernelHandle] = {
            stage.name: handle for stage, handle in zip(stages, handles, strict=True)
        }
        self.arguments: tuple[str, ...] = tuple(
            dict.fromkeys(argument for stage in stages for argument in stage.arguments.values())
        )
        self.written: tuple[str, ...] = tuple(
            dict.fromkeys(
                stage.arguments[parameter.name]
                for stage, handle in zip(stages, handles, strict=True)
                for parameter in handle.launch.parameters
                if parameter.name in stage.arguments and parameter.role in ("out", "inout")
            )
        )

    def __call__(self, *, stream: Any = None, **arguments: Any) -> dict[str, Any]:
        """Launch every stage on one stream; returns the written arguments by name, intermediate ones too.

        ``arguments`` are :attr:`arguments`; each stage checks its own like
        :meth:`kaas.KernelHandle.__call__`, and a stage is launched only if those before it were. Raises
        :class:`InvalidArgument` naming the stage and the argument, :class:`TargetMismatch` or
        :class:`DeviceError`.
        """
        wrong = sorted(set(arguments) ^ set(self.arguments))
        if wrong:
            problem = "unknown" if wrong[0] in arguments else "missing"
            raise InvalidArgument(
                f"the argument {wrong[0]!r} is {problem}; legal: {', '.join(self.arguments)}",
                argument=wrong[0],
                legal=list(self.arguments),
            )
        for stage in self._stages:
            handle = self.handles[stage.name]
            values = [
                _seen_as(parameter, arguments[stage.arguments[parameter.name]])
                if parameter.name in stage.arguments
                else stage.constants[parameter.name]
                for parameter in handle.launch.parameters
            ]
            try:
                handle(*values, stream=stream)
            except InvalidArgument as error:
                raise InvalidArgument(
                    f"{stage.name}: {error.message}", **{**error.details, "stage": stage.name}
                ) from None
        return {name: arguments[name] for name in self.written}

    def __repr__(self) -> str:
        return f"<KernelChain {' -> '.join(self.handles)}>"
