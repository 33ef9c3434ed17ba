"""Group layout: where groups start and end along an axis they share, as the kernels read it.

``layout[g]`` is the position after group g's last element. Group g starts at the end of the one before it,
rounded up to :data:`GROUP_ALIGNMENT`; the first one starts at 0. A group that ends at or before its start is
empty. Cores read the ends one by one from global memory, which the scalar unit of either kind of core can.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

import msgspec

GROUP_ALIGNMENT = 256
"""Groups start at multiples of this many rows (or values of K)."""


class Span:
    """Where the running group starts and ends, as one-element buffers; ``GroupReader.open`` fills it in."""

    start: Any
    end: Any

    def keep(self, start: Any, end: Any) -> None:
        """Set both: TileLang's macros know no assignment to attributes."""
        self.start, self.end = start, end


class GroupReader(msgspec.Struct, frozen=True):
    """Macros that walk a layout: ``open(span)`` first, then ``advance(span, layout, group)`` for each group.

    Groups come in order. ``advance`` returns start and end of the group; an empty one has end = start.
    """

    open: Callable[[Span], Any]
    advance: Callable[[Span, Any, Any], Any]


def group_reader(extent: Any) -> GroupReader:
    """The reader of a layout on an axis of ``extent`` elements, a constant or an expression.

    No span leaves the axis, whatever the layout says.
    """
    import tilelang.ascend.language as T

    @T.macro
    def open_span(span: Any) -> None:
        start = T.alloc_var("int32", init=0)
        end = T.alloc_var("int32", init=0)
        span.keep(start.buffer, end.buffer)

    @T.macro
    def advance(span: Any, layout: Any, group: Any) -> Any:
        span.start[0] = T.truncdiv(span.end[0] + GROUP_ALIGNMENT - 1, GROUP_ALIGNMENT) * GROUP_ALIGNMENT
        span.start[0] = T.min(span.start[0], extent)
        span.end[0] = T.max(T.min(layout[group], extent), span.start[0])
        return span.start[0], span.end[0]

    return GroupReader(open_span, advance)
