"""Tensors: what a launch needs to know of a torch tensor or a NumPy array, without importing either.

A reader turns one argument into its :data:`Facts`. Readers are chosen once per Python type, because asking an
object what it is costs more than asking it for its pointer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Facts = tuple[int, str, tuple[int, ...], bool, str, bool, bool]
"""Pointer, dtype, shape, C-contiguous, place, is a NumPy array, writable.

``dtype`` is the host library's name.

``place`` is ``cpu`` or ``npu:<index>``, or whatever else the tensor's library calls its device.
"""
Reader = Callable[[Any], Facts]

HOST_ARRAY_ALIGNMENT = 16
"""What NumPy's allocator promises. Arrays never reach a device, whose allocations are 512-byte aligned, so
holding them to a device's alignment would refuse ordinary arrays for nothing."""

_dtypes: dict[Any, str] = {}
_places: dict[Any, str] = {}
_readers: dict[type, Reader | None] = {}


class Unreadable(Exception):
    """A tensor that has no plain memory (sparse, meta, fake ...); the message says so."""


def reader_for(argument: Any) -> Reader | None:
    """The reader of this argument's type, or ``None`` when it is no tensor."""
    kind = type(argument)
    try:
        return _readers[kind]
    except KeyError:
        reader = _choose(kind)
        _readers[kind] = reader
        return reader


def is_torch_tensor(argument: Any) -> bool:
    """Whether it is read as one."""
    return reader_for(argument) is _read_torch


def _choose(kind: type) -> Reader | None:
    if hasattr(kind, "data_ptr") and hasattr(kind, "is_contiguous"):
        return _read_torch
    # NumPy's scalars have the array interface too, but no memory that a kernel could write.
    names = {(base.__module__, base.__name__) for base in kind.__mro__}
    # A kernel would take the values under the mask like any other.
    if ("numpy.ma", "MaskedArray") in names or ("numpy.ma.core", "MaskedArray") in names:
        return _refuse_masked
    if ("numpy", "ndarray") in names:
        return _read_numpy
    return None


def _read_torch(tensor: Any) -> Facts:
    try:
        dtype = tensor.dtype
        device = tensor.device
        if tensor.is_neg():  # a conjugate is complex, and no kernel takes that dtype
            raise Unreadable("its memory holds other values; call .resolve_neg()")
        return (
            tensor.data_ptr(),
            _dtypes.get(dtype) or _name_dtype(dtype),
            tensor.shape,
            tensor.is_contiguous(),
            _places.get(device) or _name_place(device),
            False,
            # Autograd does not see what a kernel writes: gradients would vanish without a word.
            not tensor.requires_grad,
        )
    except RuntimeError as error:
        raise Unreadable(str(error).splitlines()[0]) from None


def _refuse_masked(_: Any) -> Facts:
    raise Unreadable("a kernel knows no mask; call .filled()")


def _read_numpy(array: Any) -> Facts:
    dtype = array.dtype
    flags = array.flags
    return (
        array.__array_interface__["data"][0],
        _dtypes.get(dtype) or _name_dtype(dtype),
        array.shape,
        flags.c_contiguous,
        "cpu",
        True,
        flags.writeable,
    )


def _name_dtype(dtype: Any) -> str:
    name = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    # A byte-swapped array has the right name and the wrong bytes.
    known = name if getattr(dtype, "isnative", True) else f"byte-swapped {name}"
    _dtypes[dtype] = known
    return known


def _name_place(device: Any) -> str:
    kind = str(device.type)
    place = kind if kind == "cpu" else f"{kind}:{device.index or 0}"
    _places[device] = place
    return place
