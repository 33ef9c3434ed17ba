"""Fields that the specs of matrix products share: their extents and the explicit tile choice."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from kaas.kernel_library.spec import require_int, within
from kaas.proto.errors import InvalidSpec

MAX_EXTENT = 2**22
"""Of a constant extent: 256 rows then span fewer than 2^31 elements, as TileLang's literals must."""

QUANTISED_BLOCK = 32
"""Consecutive columns of a quantised result that share a scale."""
QUANTISED_PAIR = 64
"""Columns of one pair of such scales: a tile has whole pairs."""

GemmDim = Annotated[int, within(1, MAX_EXTENT)] | Literal["dynamic"]


class GemmTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An explicit tile choice: output tile rows and columns, and the K step held in L1 (elements)."""

    block_m: Annotated[int, within(16, 256, multiple_of=16)]
    block_n: Annotated[int, within(16, 256, multiple_of=16)]
    block_k: Annotated[int, within(16, 1024, multiple_of=16)]

    def __post_init__(self) -> None:
        require_int(self.block_m, "tile.block_m", 16, 256, multiple_of=16)
        require_int(self.block_n, "tile.block_n", 16, 256, multiple_of=16)
        require_int(self.block_k, "tile.block_k", 16, 1024, multiple_of=16)


def require_tile(value: Any) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a :class:`GemmTile` or ``None``."""
    if value is not None and not isinstance(value, GemmTile):
        raise InvalidSpec(
            "tile is not a kaas.GemmTile(block_m=..., block_n=..., block_k=...)",
            field="tile",
            legal="a GemmTile or null",
        )


def require_multiple(value: int | str, field: str, multiple: int) -> None:
    """Raise :class:`InvalidSpec` for a constant extent that is no multiple; a dynamic one is the caller's."""
    if isinstance(value, int) and value % multiple:
        legal = f"a multiple of {multiple}"
        raise InvalidSpec(f"{field} is {value}; legal: {legal}", field=field, legal=legal)
