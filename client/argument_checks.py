"""Checks of single launch arguments: what may stand at one position of a handle call.

The ordinary path compares and returns; words are only put together once something is wrong.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from kaas.client.tensors import HOST_ARRAY_ALIGNMENT, Unreadable, reader_for
from kaas.proto.dtypes import ELEMENT_TYPES
from kaas.proto.errors import InvalidArgument
from kaas.proto.launch import Parameter

_NAMES = {element.host_names[0]: name for name, element in ELEMENT_TYPES.items()}
"""kaas's names of host dtypes, for messages."""

UNBOUND = -1
"""A dynamic symbol that no argument of this call has bound yet."""


class TensorCheck:
    """One tensor parameter. ``codes`` is per dimension its extent, or ``~number`` of a dynamic symbol."""

    def __init__(self, parameter: Parameter, codes: tuple[int, ...]) -> None:
        self.parameter = parameter
        self.written = parameter.role in ("out", "inout")
        self.alignment = parameter.alignment
        element = ELEMENT_TYPES[parameter.dtype]
        self._dtypes = element.host_names
        self._codes = codes
        self._constant = None if any(code < 0 for code in codes) else codes
        self._element_bytes = element.bytes

    def bind(self, argument: Any, symbols: list[int], place: str) -> tuple[int, int]:
        """Data pointer and bytes of ``argument``, binding the symbols of its shape.

        Raises :class:`InvalidArgument` naming the argument and what is expected.
        """
        reader = reader_for(argument)
        if reader is None:
            raise self._refusal(f"is {_kind_of(argument)}", "a torch tensor or a NumPy array")
        try:
            pointer, dtype, shape, contiguous, at, is_array, writable = reader(argument)
        except Unreadable as error:
            raise self._refusal(f"has no memory to read: {error}", "a dense tensor") from None
        if dtype not in self._dtypes:
            raise self._wrong_dtype(dtype)
        if shape != self._constant:
            self._bind_shape(shape, symbols)
        if not contiguous:
            raise self._refusal("is not contiguous", "row-major contiguous memory; call .contiguous()")
        if at != place:
            raise self._refusal(f"is on {at}", f"a tensor on {place}")
        if not pointer and 0 not in shape:
            raise self._refusal("has no memory", "a tensor with storage")
        alignment = self.alignment
        if pointer % alignment and (not is_array or pointer % HOST_ARRAY_ALIGNMENT):
            raise self._refusal(
                f"begins at an address that is no multiple of {alignment} bytes (a slice?)",
                f"{alignment}-byte aligned memory; call .clone() or .copy()",
            )
        if self.written and not writable:
            raise self._refusal(
                "is read-only or requires a gradient", "memory that may be written behind autograd's back"
            )
        return pointer, math.prod(shape) * self._element_bytes

    def _bind_shape(self, shape: tuple[int, ...], symbols: list[int]) -> None:
        if len(shape) != len(self._codes):
            raise self._wrong_shape(shape, symbols)
        for extent, code in zip(shape, self._codes, strict=True):
            if code < 0 and symbols[~code] == UNBOUND:
                symbols[~code] = extent
            elif extent != (symbols[~code] if code < 0 else code):
                raise self._wrong_shape(shape, symbols)

    def _wrong_dtype(self, dtype: str) -> InvalidArgument:
        hint = f"a {self.parameter.dtype} tensor"
        if len(self._dtypes) > 1:
            hint += f" (host dtype {' or '.join(self._dtypes)})"
        if self.parameter.dtype == "bf16" and dtype in ("uint16", "int16"):
            hint = "a bf16 tensor (NumPy: ml_dtypes.bfloat16; a 16-bit integer view is not taken for bf16)"
        return self._refusal(f"has dtype {_NAMES.get(dtype, dtype)}", hint)

    def _wrong_shape(self, shape: tuple[int, ...], symbols: list[int]) -> InvalidArgument:
        expected = ", ".join(
            f"{name}={symbols[~code]}" if code < 0 and symbols[~code] != UNBOUND else str(name)
            for name, code in zip(self.parameter.shape, self._codes, strict=True)
        )
        return self._refusal(f"has shape {_shown(shape)}", f"shape [{expected}]")

    def _refusal(self, what: str, expected: str) -> InvalidArgument:
        return refusal(self.parameter.name, what, expected)


class ScalarCheck:
    """One scalar parameter: a Python or NumPy number that fits the dtype."""

    written = False

    def __init__(self, parameter: Parameter) -> None:
        self.parameter = parameter
        self._kind = SCALARS[parameter.dtype]
        self._largest = parameter.largest

    def bind(self, argument: Any, symbols: list[int], place: str) -> tuple[Any, int]:
        """The number to pack. Raises :class:`InvalidArgument` when it does not fit."""
        value = self._kind.number(argument)
        if value is None:
            raise refusal(self.parameter.name, f"is {_kind_of(argument)}", self._kind.expected)
        largest = self._largest
        if largest is not None and not -largest <= argument <= largest:  # a NaN is neither
            expected = f"a number from {-largest:g} to {largest:g}"
            raise refusal(self.parameter.name, f"is {_kind_of(argument)}", expected)
        return value, 0


class ScalarKind:
    """How one dtype is packed as a scalar; ``number`` gives the value for ``struct`` or ``None``."""

    def __init__(self, code: str, size: int, number: Callable[[Any], Any], expected: str) -> None:
        self.code = code
        self.size = size
        self.number = number
        self.expected = expected


def _integer(bits: int) -> Callable[[Any], int | None]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def number(argument: Any) -> int | None:
        value: int | None = argument if type(argument) is int else _index(argument)
        return None if value is None or not low <= value <= high else value

    return number


def _index(argument: Any) -> int | None:
    if isinstance(argument, bool) or hasattr(argument, "data_ptr") or not hasattr(argument, "__index__"):
        return None
    try:
        return int(argument.__index__())
    except TypeError:  # an array of one float has the method and no index
        return None


def _floating(code: str) -> Callable[[Any], float | None]:
    fits = struct.Struct(code)

    def number(argument: Any) -> float | None:
        if type(argument) is not float:
            if isinstance(argument, (bool, str, bytes)) or getattr(argument, "shape", ()) != ():
                return None
            if hasattr(argument, "data_ptr") or not hasattr(argument, "__float__"):
                return None
            try:
                argument = argument.__float__()
            except (TypeError, OverflowError):
                return None
        try:
            fits.pack(argument)
        except (OverflowError, struct.error):
            return None
        return float(argument)

    return number


def _bf16_bits(argument: Any) -> int | None:
    value = _floating("<f")(argument)
    if value is None:
        return None
    bits = int.from_bytes(struct.pack("<f", value), "little")
    if value != value:
        return (bits >> 16) | 0x40
    # Round to nearest, ties to even, on the upper half of the fp32 pattern.
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


SCALARS: dict[str, ScalarKind] = {
    "int32": ScalarKind("i", 4, _integer(32), "an integer that fits int32"),
    "int64": ScalarKind("q", 8, _integer(64), "an integer that fits int64"),
    "fp32": ScalarKind("f", 4, _floating("<f"), "a number that fits fp32"),
    "fp16": ScalarKind("e", 2, _floating("<e"), "a number that fits fp16"),
    "bf16": ScalarKind("H", 2, _bf16_bits, "a number that fits bf16"),
}


def refusal(argument: str, what: str, expected: str) -> InvalidArgument:
    """The error that names an argument, what is wrong with it, and what is expected."""
    return InvalidArgument(
        f"argument {argument!r} {what}; expected: {expected}", argument=argument, expected=expected
    )


def _shown(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _number(number: float) -> str:
    try:
        text = repr(number)
    except ValueError:  # an integer with more digits than Python prints
        return "with thousands of digits"
    return text if len(text) <= 40 else f"{text[:30]}... ({len(text)} digits)"


def _kind_of(argument: Any) -> str:
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return f"the number {_number(argument)}"
    return f"a {type(argument).__qualname__}" if argument is not None else "None"
