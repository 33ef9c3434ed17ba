"""Word blocks: tensors of a few 32-bit words per token, moved as one run of words without padding.

A block is the words of 64 consecutive tokens (or of 64 indices). Lane j of a register stands for token j of a
block, whose words are fetched and written by gathers and scatters.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any

from kaas.kernel_library.entry import looked_at, ring_rows
from kaas.kernel_library.vector.row_plan import VECTOR_LANES

WORD_BLOCKS_SOURCE = "kaas.kernel_library.vector.word_blocks"
"""For ``Family.sources`` of a family that uses this module."""

MAX_WORDS = 2**31 - VECTOR_LANES
"""The most indices that are counted in 32 bits block by block."""


def blocks_of(tokens: Any) -> Any:
    """How many blocks ``tokens`` tokens make, the last one perhaps not full."""
    import tilelang.ascend.language as T

    if isinstance(tokens, int):  # which rounding up may take beyond 32 bits
        return -(-tokens // VECTOR_LANES)
    return T.truncdiv(tokens + VECTOR_LANES - 1, VECTOR_LANES)


def move_words(tokens: Any, words: int, dtype: str, *, into_ub: bool) -> Any:
    """A macro ``(buffer, ub, slot, first, count)`` that copies blocks ``first`` to ``first + count``.

    ``buffer`` has ``words`` 32-bit words for each of ``tokens`` tokens and is looked at as ``dtype``; ``ub``
    is [stages, words of a stage], a multiple of ``words``.
    """
    import tilelang.ascend.language as T

    @T.macro
    def move(buffer: Any, ub: Any, slot: Any, first: Any, count: Any) -> None:
        begin = T.alloc_var("int32")
        length = T.alloc_var("int32")
        begin = first * VECTOR_LANES
        length = T.min(count * VECTOR_LANES, tokens - first * VECTOR_LANES)
        if into_ub:
            T.copy(
                looked_at(buffer, (tokens, words), dtype)[begin : begin + length, 0:words],
                ring_rows(ub, words)[slot, 0:length, 0:words],
            )
        else:
            T.copy(
                ring_rows(ub, words)[slot, 0:length, 0:words],
                looked_at(buffer, (tokens, words), dtype)[begin : begin + length, 0:words],
            )

    return move


def tokens_in_block(tokens: Any, block: Any) -> Any:
    """The predicate of the lanes of ``block`` that are tokens."""
    import tilelang.ascend.language as T

    left = T.min(tokens - block * VECTOR_LANES, VECTOR_LANES)
    return T.simd.update_mask(T.cast(left, "uint32"), 32)


def word_places(words: int) -> Any:
    """int32 places of the first words of a block's tokens."""
    import tilelang.ascend.language as T

    return T.simd.vmuls(T.simd.vci(T.int32(0), "int32"), words)
