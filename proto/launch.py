"""Launch metadata: what a client must know to call a kernel's entry."""

from __future__ import annotations

from typing import Literal

import msgspec

from kaas.proto.extents import Extent

Role = Literal["in", "out", "inout", "scalar"]


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One argument of a handle call, in call order.

    Tensors are row-major and contiguous with ``shape``; scalars have an empty shape. ``dtype`` is a name of
    :data:`kaas.proto.dtypes.ELEMENT_TYPES`. ``alignment`` is the required byte alignment of the data pointer.
    A tensor that ``may_be_empty`` may have no elements while an output has some. A scalar is a number from
    -``largest`` to ``largest`` if there is one.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[Extent, ...] = ()
    alignment: int = 32
    may_be_empty: bool = False
    largest: float | None = None


class SignatureArgument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One argument of the device entry, in the order of the generated signature.

    ``kind`` ``pointer`` and ``scalar`` take the parameter of that name; ``symbol`` takes the value that a
    dynamic dimension of that name was bound to.
    """

    name: str
    kind: Literal["pointer", "scalar", "symbol"]
    dtype: str


class LaunchMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to launch one kernel: entry symbol, grid, dynamic UB bytes, parameters, device signature."""

    entry: str
    block_count: int
    dynamic_ub_bytes: int
    parameters: tuple[Parameter, ...]
    signature: tuple[SignatureArgument, ...]
