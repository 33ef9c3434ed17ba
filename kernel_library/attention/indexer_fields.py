"""Indexer fields: what specs of the sparse attention's scores have in common, and how their work is cut.

A query has ``heads`` rows of ``head_dim`` values; a key has one row that all heads share. A tile is as many
whole queries as 64 rows hold; a block is eight tiles, whose queries stay in L0A while keys pass.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kaas.kernel_library.choice import only_one
from kaas.kernel_library.cube.scaled_operands import PAIR, SCALED_OPERAND_SOURCES
from kaas.kernel_library.spec import (
    DYNAMIC,
    KernelSpec,
    require_bool,
    require_dim,
    require_int,
    require_one_of,
)
from kaas.proto.errors import DoesNotFit
from kaas.proto.target import Target

INDEXER_FIELDS_SOURCES = (
    "kaas.kernel_library.choice",
    "kaas.kernel_library.cube.cube_pipeline",
    "kaas.kernel_library.cube.gemm_fields",
    "kaas.kernel_library.cube.gemm_tiles",
    "kaas.kernel_library.entry",
    *SCALED_OPERAND_SOURCES,
    "kaas.kernel_library.attention.indexer_fields",
)
"""For ``Family.sources`` of a family built on this module."""

HEAD_DIMS = (64, 128)
DTYPES = ("e4m3", "e2m1")
LEAST_HEADS, MOST_HEADS, HEADS_MULTIPLE = 4, 64, 4
MAX_COLUMNS = 2**31 - 2**16
"""Rounded up to whole blocks they are still counted in 32 bits."""
MAX_TOKENS = 2**22
"""Of constant counts: rows of all heads and their bytes then stay below 2^31 per tensor axis."""

TILE_ROWS = 64
BLOCK_TILES = 8
STEP_KEYS = 256
"""Keys of one cube step: what one vector core takes at a time."""
SPLIT_KEYS = 2 * STEP_KEYS
"""Keys that are planned as one: a step for each vector core."""
FRACTAL = 16
FILL_COLUMNS = 2048
KEY_SLOTS, QUERY_SLOTS, L0B_SLOTS, L0C_SLOTS, UB_SLOTS, LINE_SLOTS = 4, 2, 2, 4, 2, 2


class IndexerTiles(msgspec.Struct, frozen=True):
    """How queries and keys are cut for ``heads`` heads of ``head_dim`` values."""

    heads: int
    head_dim: int
    dtype: str

    @property
    def queries(self) -> int:
        """Of a tile."""
        return TILE_ROWS // self.heads

    @property
    def rows(self) -> int:
        """Of a tile in L1 and beyond, whole fractals."""
        return -(-self.queries * self.heads // FRACTAL) * FRACTAL

    @property
    def block_queries(self) -> int:
        """Of a block."""
        return BLOCK_TILES * self.queries

    @property
    def pairs(self) -> int:
        """Pairs of scales of a row."""
        return self.head_dim // PAIR

    @property
    def row_bytes(self) -> int:
        """Stored values of a query's head or of a key."""
        return self.head_dim // (2 if self.dtype == "e2m1" else 1)

    def buffer_bytes(self) -> dict[str, int]:
        """What a core's buffers take, by the name of the memory."""
        scale_bytes = 2 * self.pairs
        lines = LINE_SLOTS * 2 * self.queries * STEP_KEYS * 2
        weights = BLOCK_TILES * TILE_ROWS * (2 + 4)
        return {
            "L1": (self.row_bytes + scale_bytes)
            * (QUERY_SLOTS * BLOCK_TILES * self.rows + KEY_SLOTS * STEP_KEYS),
            "L0A": BLOCK_TILES * self.rows * self.row_bytes,
            "L0B": L0B_SLOTS * STEP_KEYS * self.row_bytes,
            "L0C": L0C_SLOTS * self.rows * STEP_KEYS * 4,
            "UB": UB_SLOTS * self.rows * STEP_KEYS * 4 + lines + weights + FILL_COLUMNS * 2,
        }

    def choices(self) -> dict[str, Any]:
        """What is worth showing of a built kernel."""
        return {
            "tile_queries": self.queries,
            "tile_rows": self.rows,
            "block_queries": self.block_queries,
            "step_keys": STEP_KEYS,
            "buffers": self.buffer_bytes(),
            "why": only_one(
                f"the only tiling: {L0C_SLOTS} accumulators of {TILE_ROWS} rows, {STEP_KEYS} keys fill L0C, "
                f"{BLOCK_TILES} tiles of queries L0A"
            ),
        }


def require_indexer_fields(spec: Any) -> None:
    """Raise :class:`InvalidSpec` for the first of the shared fields of ``spec`` that is not legal."""
    require_int(spec.heads, "heads", LEAST_HEADS, MOST_HEADS, multiple_of=HEADS_MULTIPLE)
    require_one_of(spec.head_dim, "head_dim", HEAD_DIMS)
    require_one_of(spec.dtype, "dtype", DTYPES)
    require_dim(spec.tokens, "tokens", MAX_TOKENS)
    require_dim(spec.columns, "columns", MAX_COLUMNS)
    require_bool(spec.clean, "clean")


def require_next_n(next_n: Any, tokens: Any, most: int) -> None:
    """Raise :class:`InvalidSpec` unless ``tokens`` queries are whole requests of ``next_n``, if given."""
    require_dim(tokens, "tokens", MAX_TOKENS)
    if next_n is None:
        return
    require_int(next_n, "next_n", 1, most)
    if tokens != DYNAMIC:
        require_int(tokens, "tokens", 1, MAX_TOKENS, multiple_of=next_n)


def tiles_of(spec: Any) -> IndexerTiles:
    """The tiles of a spec with the shared fields."""
    return IndexerTiles(spec.heads, spec.head_dim, spec.dtype)


def require_room(spec: KernelSpec, target: Target) -> None:
    """Raise :class:`DoesNotFit` naming the buffer of ``target`` that ``spec`` would overrun."""
    room = {
        "L1": target.l1_bytes,
        "L0A": target.l0a_bytes,
        "L0B": target.l0b_bytes,
        "L0C": target.l0c_bytes,
        "UB": target.ub_bytes,
    }
    for name, taken in tiles_of(spec).buffer_bytes().items():
        excess = taken - room[name]
        if excess > 0:
            raise DoesNotFit(
                f"a block of queries needs {taken} bytes of {name}, {excess} more than there are",
                field="heads",
                legal="a part whose buffers are as large as those of Ascend950",
                buffer=name,
                excess_bytes=excess,
            )
