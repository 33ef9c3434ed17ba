"""LaunchPlan: all of a kernel's call that can be worked out once, so that a call only checks and packs.

The device entry takes one block of bytes: pointers as 8 bytes, scalars and bound symbols at their natural
alignment, padded to a multiple of 8.
"""

from __future__ import annotations

import ctypes
import operator
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kaas.client.accepted_call import AcceptedCall
from kaas.client.argument_checks import SCALARS, UNBOUND, ScalarCheck, TensorCheck, refusal
from kaas.client.tensors import is_torch_tensor
from kaas.proto.errors import ArtifactDamaged, InvalidArgument
from kaas.proto.extents import formula_of
from kaas.proto.launch import LaunchMetadata, SignatureArgument


class _ArgumentBlock(threading.local):
    """One block per thread: another thread's call must not tear this one's arguments."""

    def __init__(self, size: int) -> None:
        self.bytes = ctypes.create_string_buffer(size)


def _in_order(sources: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What takes the values at these places, in their order."""
    if len(sources) > 1:
        return operator.itemgetter(*sources)
    return lambda values: tuple(values[source] for source in sources)


class LaunchPlan:
    """Checks and packs the arguments of one kernel.

    Raises :class:`ArtifactDamaged` for metadata that contradicts itself.
    """

    def __init__(self, launch: LaunchMetadata) -> None:
        self.launch = launch
        self.parameters = launch.parameters
        self.symbols = tuple(
            dict.fromkeys(
                extent
                for parameter in self.parameters
                for extent in parameter.shape
                if isinstance(extent, str)
            )
        )
        self._unbound = [UNBOUND] * len(self.symbols)
        try:
            self._checks = tuple(
                ScalarCheck(parameter)
                if parameter.role == "scalar"
                else TensorCheck(parameter, tuple(map(self._code, parameter.shape)))
                for parameter in self.parameters
            )
            layout, sources = self._layout(launch.signature)
            self._formulas = self._formulas_of()
        except (KeyError, ValueError) as error:
            raise ArtifactDamaged(
                f"the launch metadata names {error}, which this version does not know", part="launch"
            ) from None
        self._outputs = tuple(index for index, check in enumerate(self._checks) if check.written)
        self._tensors = tuple(i for i, check in enumerate(self._checks) if isinstance(check, TensorCheck))
        # Each pair once: what shares memory does so in either order.
        self._apart = tuple(
            (output, other)
            for output in self._outputs
            for other in self._tensors
            if other > output or other not in self._outputs
        )
        self._in_order = _in_order(sources)
        self._accepted: AcceptedCall | None = None
        packing = struct.Struct(layout)
        self._pack_into = packing.pack_into
        self.size = packing.size
        self._block = _ArgumentBlock(max(self.size, 8))

    def _code(self, extent: int | str) -> int:
        return extent if isinstance(extent, int) else ~self.symbols.index(extent)

    def _formulas_of(self) -> tuple[tuple[int, int, int, int], ...]:
        """Which bound extents follow from others: (number, number of its symbol, factor, divisor).

        Raises :class:`ValueError` for a formula whose symbol stands alone in no shape.
        """
        found = []
        for number, text in enumerate(self.symbols):
            formula = formula_of(text)
            if formula is not None:
                found.append((number, self.symbols.index(formula.symbol), formula.factor, formula.divisor))
        return tuple(found)

    def _layout(self, signature: Sequence[SignatureArgument]) -> tuple[str, tuple[int, ...]]:
        """``struct`` format, and where each value is in ``[one per parameter] + [one per symbol]``."""
        parameters = {parameter.name: index for index, parameter in enumerate(self.parameters)}
        symbols = {name: len(self.parameters) + index for index, name in enumerate(self.symbols)}
        layout, sources, offset = "<", [], 0
        for argument in signature:
            sources.append((symbols if argument.kind == "symbol" else parameters)[argument.name])
            kind = None if argument.kind == "pointer" else SCALARS[argument.dtype]
            size, code = (kind.size, kind.code) if kind else (8, "Q")
            padding = -offset % size
            layout += f"{padding}x{code}"
            offset += padding + size
        return f"{layout}{-offset % 8}x", tuple(sources)

    def pack(self, arguments: Sequence[Any], place: str) -> ctypes.Array[ctypes.c_char] | None:
        """The packed block, this thread's own until its next call; ``None`` when nothing is to be done.

        ``place`` is where tensors must live: ``cpu`` (twin) or ``npu:<index>``. Nothing is to be done when
        every output is empty. Raises :class:`InvalidArgument` naming the argument and what is expected.
        """
        accepted = self._accepted
        if accepted is not None and accepted.place == place:
            values = accepted.read(arguments)
            if values is not None:
                block = self._block.bytes
                try:
                    self._pack_into(block, 0, *self._in_order(values))
                except struct.error:
                    pass  # below it is told what does not fit
                else:
                    return block
        return self._check(arguments, place)

    def _check(self, arguments: Sequence[Any], place: str) -> ctypes.Array[ctypes.c_char] | None:
        """:meth:`pack` of a call that is not like the last one."""
        if len(arguments) != len(self._checks):
            raise self._wrong_count(len(arguments))
        symbols = self._unbound.copy()
        values, sizes = [], []
        for check, argument in zip(self._checks, arguments, strict=True):
            value, size = check.bind(argument, symbols, place)
            values.append(value)
            sizes.append(size)
        for number, symbol, factor, divisor in self._formulas:
            if symbols[number] != -(-symbols[symbol] * factor // divisor):
                raise self._wrong_formula(number, symbol, symbols)
        for output in self._outputs:
            if sizes[output]:
                break
        else:
            if self._outputs:
                return None
        self._refuse_overlaps(values, sizes)
        self._refuse_empty(sizes)
        block = self._block.bytes
        try:
            self._pack_into(block, 0, *self._in_order(values + symbols))
        except struct.error as error:
            raise self._unpackable(symbols, error) from None
        self._accept(arguments, place, sizes, symbols)
        return block

    def _accept(self, arguments: Sequence[Any], place: str, sizes: list[int], symbols: list[int]) -> None:
        """Calls like this one are quick from now on; NumPy arrays are read as quickly by the checks."""
        tensors = [arguments[index] for index in self._tensors]
        if (
            not tensors
            or not all(map(is_torch_tensor, tensors))
            or 0 in map(sizes.__getitem__, self._tensors)
        ):
            return
        accepted = self._accepted
        if accepted is None or accepted.place != place or not accepted.is_like(arguments):
            accepted = self._accepted = AcceptedCall(self._checks, self._apart, arguments, place)
        accepted.learn(arguments, sizes, symbols)

    def _refuse_overlaps(self, values: Sequence[Any], sizes: Sequence[int]) -> None:
        for output, other in self._apart:
            begin, start = values[output], values[other]
            if start < begin + sizes[output] and begin < start + sizes[other]:
                raise self._overlap(output, other)

    def _refuse_empty(self, sizes: Sequence[int]) -> None:
        for index in self._tensors:
            if not sizes[index] and not self.parameters[index].may_be_empty:
                raise refusal(
                    self.parameters[index].name, "is empty while an output is not", "at least one element"
                )

    def _overlap(self, output: int, other: int) -> InvalidArgument:
        written, read = self.parameters[output].name, self.parameters[other].name
        return refusal(written, f"shares memory with argument {read!r}", "an output with memory of its own")

    def _wrong_formula(self, number: int, symbol: int, symbols: list[int]) -> InvalidArgument:
        text, name = self.symbols[number], self.symbols[symbol]
        culprit = next(parameter for parameter in self.parameters if text in parameter.shape)
        return refusal(
            culprit.name,
            f"has an extent of {symbols[number]} where {name} is {symbols[symbol]}",
            f"{text} there, in shape [{', '.join(map(str, culprit.shape))}]",
        )

    def _wrong_count(self, given: int) -> InvalidArgument:
        names = ", ".join(parameter.name for parameter in self.parameters)
        return InvalidArgument(
            f"{given} arguments given; expected {len(self._checks)}: {names}",
            argument=self.parameters[min(given, len(self.parameters) - 1)].name if self.parameters else None,
            expected=names,
        )

    def _unpackable(self, symbols: list[int], error: struct.error) -> InvalidArgument:
        bound = ", ".join(f"{name}={value}" for name, value in zip(self.symbols, symbols, strict=True))
        return InvalidArgument(
            f"a bound dimension does not fit the kernel's argument ({bound}): {error}",
            expected="extents below 2^31",
        )

    def outputs(self, arguments: Sequence[Any]) -> Any:
        """The written arguments: one by itself, several as a tuple, none as ``None``."""
        if len(self._outputs) == 1:
            return arguments[self._outputs[0]]
        return tuple(arguments[index] for index in self._outputs) or None
