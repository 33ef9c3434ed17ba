"""Expert rows: token rows laid out expert by expert, with padding between them.

``expert_ends[e]`` is one past expert e's last row; its first row is the end of the expert before, rounded up
to the alignment. What lies between, and behind the last expert, is padding. Facts: the expanded layout of
TileKernels (``psum_num_tokens_per_expert``) and of DeepGEMM's grouped products.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Annotated, Any

from kaas.kernel_library.spec import require_int, within
from kaas.kernel_library.vector.row_plan import MAX_ROWS
from kaas.proto.errors import InvalidSpec

EXPERT_ROW_SOURCE = "kaas.kernel_library.routing.expert_rows"
"""For ``Family.sources`` of a family that uses this module."""

MAX_EXPERTS = 4096
DEFAULT_ALIGNMENT = 128

Experts = Annotated[int, within(0, MAX_EXPERTS)]
"""How many experts there are; 0 for rows without such a layout."""
TokenAlignment = Annotated[int, within(1, 65536)]


def require_expert_rows(experts: Any, token_alignment: Any) -> None:
    """Raise :class:`InvalidSpec` unless the two fields go together."""
    require_int(experts, "experts", 0, MAX_EXPERTS)
    require_int(token_alignment, "token_alignment", 1, 65536)
    if experts == 0 and token_alignment != DEFAULT_ALIGNMENT:
        raise InvalidSpec(
            f"token_alignment is {token_alignment}, but there are no experts whose rows it could align",
            field="token_alignment",
            legal=[DEFAULT_ALIGNMENT],
        )


def row_counts_within(alignment: int) -> tuple[int, ...]:
    """The powers of two that divide ``alignment``: groups of so many rows never span two experts."""
    return tuple(2**i for i in range(MAX_ROWS.bit_length() - 1, -1, -1) if alignment % 2**i == 0)


def ends_bytes(experts: int) -> int:
    """UB that the ends take."""
    return -(-experts * 4 // 32) * 32


def valid_rows(experts: int, alignment: int) -> Any:
    """A macro ``count_of(ends_ub, cursor, first, count)``: how many rows of a group are no padding.

    These come first in it. The group must lie between two multiples of the alignment. ``cursor`` is a
    one-element int32 buffer of the core, 0 at the start, and ``first`` ascends from call to call. Runs on the
    scalar pipe.
    """
    import tilelang.ascend.language as T

    @T.macro
    def count_of(ends_ub: Any, cursor: Any, first: Any, count: Any) -> Any:
        found = T.alloc_var("int32")
        while cursor[0] < experts and first >= _aligned(ends_ub[cursor[0]], alignment):
            cursor[0] = cursor[0] + 1
        found = 0
        if cursor[0] < experts:
            found = T.max(T.min(ends_ub[cursor[0]] - first, count), 0)
        return found

    return count_of


def _aligned(end: Any, alignment: int) -> Any:
    import tilelang.ascend.language as T

    return T.truncdiv(end + alignment - 1, alignment) * alignment
