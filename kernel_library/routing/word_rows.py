"""Word rows: a tensor in global memory looked at as rows of words of another type.

``T.view`` compares the bits of both shapes, and counts constant ones in 32 bits: it refuses what is larger
than 256 MiB, which the buffers of a group of ranks are.
"""

from typing import Any

WORD_ROWS_SOURCE = "kaas.kernel_library.routing.word_rows"
"""For ``Family.sources`` of a family that uses this module."""


def word_rows(buffer: Any, rows: Any, words: int, dtype: str = "int32") -> Any:
    """``buffer`` as [rows, words] of ``dtype``; the caller makes sure that these are all its bytes."""
    import tilelang.ascend.language as T

    return T.Tensor((rows, words), dtype, buffer.data)
