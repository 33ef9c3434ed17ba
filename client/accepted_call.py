"""AcceptedCall: what a call is compared with first, because most are like the one before.

A kernel is called with tensors of the same kinds and dtypes for as long as a job runs, and in few shapes. A
call like an accepted one is told by comparisons; whatever is not like it goes through every check, which also
says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kaas.client.argument_checks import ScalarCheck, TensorCheck

MOST_SHAPES = 256
"""Beyond that many combinations of shapes they are learned anew."""


class AcceptedCall:
    """The kinds, dtypes and place of one accepted call's torch tensors, and all shapes accepted with them."""

    def __init__(
        self,
        checks: Sequence[TensorCheck | ScalarCheck],
        apart: Sequence[tuple[int, int]],
        arguments: Sequence[Any],
        place: str,
    ) -> None:
        """``apart`` are the pairs of arguments that may not share memory."""
        self.place = place
        self._apart = apart
        self._count = len(checks)
        self._tensors = tuple(
            (index, type(argument), argument.dtype, check.alignment, check.written)
            for index, (check, argument) in enumerate(zip(checks, arguments, strict=True))
            if isinstance(check, TensorCheck)
        )
        self._scalars = tuple(
            (index, check) for index, check in enumerate(checks) if isinstance(check, ScalarCheck)
        )
        self._device = None if place == "cpu" else arguments[self._tensors[0][0]].device
        self._shapes: dict[tuple[Any, ...], tuple[tuple[int, ...], list[int]]] = {}

    def is_like(self, arguments: Sequence[Any]) -> bool:
        """Whether these are of the same kinds and dtypes."""
        return all(
            type(arguments[index]) is kind and arguments[index].dtype is dtype
            for index, kind, dtype, *_ in self._tensors
        )

    def learn(self, arguments: Sequence[Any], sizes: Sequence[int], symbols: Sequence[int]) -> None:
        """These arguments' shapes are accepted too; no tensor of theirs is empty."""
        if len(self._shapes) >= MOST_SHAPES:
            self._shapes.clear()
        shapes = tuple(arguments[index].shape for index, *_ in self._tensors)
        self._shapes[shapes] = tuple(sizes), list(symbols)

    def read(self, arguments: Sequence[Any]) -> list[Any] | None:
        """One value per argument and the bound symbols; ``None`` for a call that is not like it."""
        if len(arguments) != self._count:
            return None
        values = [*arguments]
        shapes = []
        device = self._device
        try:
            for index, kind, dtype, alignment, written in self._tensors:
                tensor = arguments[index]
                if (
                    type(tensor) is not kind
                    or tensor.dtype is not dtype
                    or not (tensor.is_cpu if device is None else tensor.device == device)
                    or not tensor.is_contiguous()
                    or tensor.is_neg()
                    or (written and tensor.requires_grad)
                ):
                    return None
                pointer = tensor.data_ptr()
                if not pointer or pointer % alignment:
                    return None
                values[index] = pointer
                shapes.append(tensor.shape)
        except RuntimeError:  # it has no plain memory
            return None
        known = self._shapes.get(tuple(shapes))
        if known is None:
            return None
        sizes, symbols = known
        for one, other in self._apart:
            begin, start = values[one], values[other]
            if start < begin + sizes[one] and begin < start + sizes[other]:
                return None
        for index, check in self._scalars:
            values[index], _ = check.bind(arguments[index], [], self.place)
        values += symbols
        return values
