"""Entry: the TileLang function around a kernel's body, made from the list of what a call takes.

TileLang's decorator wants one written-out function per argument list; a family with optional arguments would
need one per combination. This goes through the builder below the decorator instead.

``looked_at`` and ``ring_rows`` are views of an entry's tensors and of its buffers in UB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kaas.proto.dtypes import ELEMENT_TYPES
from kaas.proto.extents import Extent, formula_of
from kaas.proto.launch import Parameter


class Arguments:
    """The buffers and scalars of an entry by name; one that this kernel does not take reads as ``None``."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        return self._values.get(name)


class Entry:
    """A kernel's entry in the making: its arguments first, its body when all macros are written."""

    def __init__(self, name: str, parameters: Sequence[Parameter]) -> None:
        import tilelang.ascend.language as T

        self._name = name
        self._parameters = parameters
        self._symbols: dict[str, Any] = {}
        for parameter in parameters:
            for extent in parameter.shape:
                if isinstance(extent, str) and formula_of(extent) is None and extent not in self._symbols:
                    self._symbols[extent] = T.dynamic(extent)

    def extent(self, extent: Extent) -> Any:
        """A constant as it is; a symbol of the parameters, or a formula of one, as a TileLang expression."""
        return _extent(extent, self._symbols)

    def prim_func(self, body: Callable[[Arguments], Any]) -> Any:
        """The TileLang function that takes the parameters and runs ``body``, a ``T.macro`` of one argument.

        Tensors of packed pairs appear with their logical extent: a row of ``k/2`` bytes of fp4 pairs is a row
        of ``k`` fp4 values.
        """
        from tilelang.language.eager.builder import Builder

        builder = Builder()
        with builder.prim_func(self._name):
            values = {
                parameter.name: builder.arg(parameter.name, _declaration(parameter, self._symbols))
                for parameter in self._parameters
            }
            body(Arguments(values))
        return builder.get()


def looked_at(buffer: Any, shape: Sequence[Any], dtype: str | None = None) -> Any:
    """A tensor in global memory as ``shape`` of ``dtype`` or of its own: the same bytes, unchecked.

    ``T.view`` and ``T.reshape`` count the bits of constant extents in 32 bits, and so refuse what is larger
    than 256 MiB. Extents are to be rows and columns, never one product of both: TileLang multiplies a row by
    its pitch in 64 bits, but an index of a flat tensor of more than 2**31 values is none.
    """
    import tilelang.ascend.language as T

    return T.Tensor(tuple(shape), dtype or buffer.dtype, buffer.data)


def ring_rows(ub: Any, width: int) -> Any:
    """A ring in UB [stages, values] as [stages, rows, ``width``]: no padding between rows.

    Such rows and as many of a tensor in global memory move as one run of bytes.
    """
    import tilelang.ascend.language as T

    stages, values = (int(extent) for extent in ub.shape)
    return T.StridedTensor((stages, values // width, width), (values, width, 1), ub.dtype, data=ub.data)


def _declaration(parameter: Parameter, symbols: dict[str, Any]) -> Any:
    import tilelang.ascend.language as T

    element = ELEMENT_TYPES[parameter.dtype]
    if parameter.role == "scalar":
        return getattr(T, element.tilelang)()
    shape = [_extent(extent, symbols) for extent in parameter.shape]
    if element.packed > 1:
        shape[-1] = _unpacked(parameter.shape[-1], element.packed, symbols)
    return T.Tensor(tuple(shape), element.tilelang)


def _extent(extent: Extent, symbols: dict[str, Any]) -> Any:
    import tilelang.ascend.language as T

    if isinstance(extent, int):
        return extent
    formula = formula_of(extent)
    if formula is None:
        return symbols[extent]
    symbol = symbols[formula.symbol] * formula.factor
    return T.truncdiv(symbol + formula.divisor - 1, formula.divisor) if formula.divisor > 1 else symbol


def _unpacked(extent: Extent, packed: int, symbols: dict[str, Any]) -> Any:
    """Logical values in a row of packed elements; ``ceil(k/2)`` pairs are the ``k`` values they hold."""
    if isinstance(extent, str):
        formula = formula_of(extent)
        if formula is not None and formula.divisor == packed:
            return symbols[formula.symbol]
    return _extent(extent, symbols) * packed
