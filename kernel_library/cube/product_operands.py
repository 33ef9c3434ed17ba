"""Product operands: what the dtypes and layouts of A and B mean for specs, tiles and arguments.

Plain operands are bf16 or fp16, both alike. Block-scaled ones are e4m3 both, e2m1 both, or e4m3 with an e2m1
B that is widened on the vector cores; 32 consecutive K of a row share an e8m0 scale, two scales are a pair.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kaas.kernel_library.cube.gemm_fields import GemmTile, require_tile
from kaas.kernel_library.cube.gemm_tiles import GemmProblem
from kaas.kernel_library.cube.quantised_epilogue import row_bytes
from kaas.kernel_library.cube.scaled_operands import PAIR
from kaas.kernel_library.cube.widened_operand import UB_BYTES_PER_VALUE
from kaas.kernel_library.spec import DTYPE_BYTES, DYNAMIC
from kaas.proto.dtypes import ELEMENT_TYPES, ElementType
from kaas.proto.errors import InvalidSpec

BLOCK = 32
"""Consecutive K (of a quantised D: consecutive N) that share a scale."""
SCALED = ("e4m3", "e2m1")
QUANTISED = "e4m3"
WIDEST_BLOCK = 256
_STORED_AS = {"e2m1": "e2m1x2"}


class ProductOperands(msgspec.Struct, frozen=True, kw_only=True):
    """The dtypes of A, B and D, and whether A and B lie ``k_major``: [K, rows] instead of [rows, K]."""

    dtype_a: str
    dtype_b: str
    dtype_d: str
    a_k_major: bool
    b_k_major: bool
    accumulate: bool

    @property
    def scaled(self) -> bool:
        """Whether A and B bring scales."""
        return self.dtype_a in SCALED

    @property
    def widens_b(self) -> bool:
        """Whether B becomes e4m3 on the vector cores: the cube takes operands of one width."""
        return self.dtype_a != self.dtype_b

    @property
    def quantised(self) -> bool:
        """Whether D is block-scaled itself."""
        return self.dtype_d == QUANTISED

    @property
    def stored_a(self) -> str:
        """The argument dtype of A."""
        return _STORED_AS.get(self.dtype_a, self.dtype_a)

    @property
    def stored_b(self) -> str:
        """The argument dtype of B."""
        return _STORED_AS.get(self.dtype_b, self.dtype_b)

    @property
    def on_cube(self) -> ElementType:
        """What both operands are on the cube."""
        return ELEMENT_TYPES[self.stored_a]

    @property
    def through_vectors(self) -> bool:
        """Whether the result passes the vector cores.

        They apply what a widened operand lacks, quantise, and add D when it is narrower than the accumulator:
        the store itself adds to an fp32 D, but would round a narrower one twice, once for the product and
        once for the sum.
        """
        return self.widens_b or self.quantised or (self.accumulate and self.dtype_d != "fp32")

    def tile_multiples(self) -> dict[str, int]:
        """What the block extents are multiples of.

        Scales come in pairs along K, and those of a quantised D along N. An operand of bytes is turned in
        squares of 32. Each vector core widens half of B's rows.
        """
        if not self.scaled:
            return {"block_m": 16, "block_n": PAIR if self.quantised else 16, "block_k": 16}
        squares_of_b = self.b_k_major or self.widens_b
        return {
            "block_m": BLOCK if self.a_k_major else 16,
            "block_n": PAIR if self.quantised else BLOCK if squares_of_b else 16,
            "block_k": PAIR,
        }

    def problem(self, m: int | None, n: int | None, k: int | None, matrices: int) -> GemmProblem:
        """What tile choice needs to know of ``matrices`` products of these extents; ``None`` is dynamic."""
        multiples = self.tile_multiples()
        return GemmProblem(
            m=m,
            n=n,
            k=k,
            input_bytes=self.on_cube.bytes / self.on_cube.packed,
            output_bytes=DTYPE_BYTES[self.dtype_d],
            vector_epilogue=self.through_vectors,
            reads_output=self.accumulate,
            matrices=matrices,
            m_multiple=multiples["block_m"],
            n_multiple=multiples["block_n"],
            k_multiple=multiples["block_k"],
            scaled=self.scaled,
            result_row_bytes=row_bytes(WIDEST_BLOCK) if self.quantised else 0,
            staged_bytes=UB_BYTES_PER_VALUE if self.widens_b else 0.0,
        )

    def require_tile(self, tile: GemmTile | None) -> None:
        """Raise :class:`InvalidSpec` unless ``tile`` is none or one that these operands can have."""
        require_tile(tile)
        if tile is not None:
            for field, multiple in self.tile_multiples().items():
                require_multiple(getattr(tile, field), f"tile.{field}", multiple)


def require_whole_blocks(extent: Any, field: str) -> None:
    """Raise :class:`InvalidSpec` unless ``extent`` is dynamic or whole blocks of values with one scale."""
    if extent != DYNAMIC:
        require_multiple(extent, field, BLOCK)


def require_multiple(value: int, field: str, multiple: int) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a multiple."""
    if value % multiple:
        raise InvalidSpec(
            f"{field} is {value}; legal: a multiple of {multiple}",
            field=field,
            legal=f"a multiple of {multiple}",
        )
