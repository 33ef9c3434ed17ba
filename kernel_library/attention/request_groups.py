"""Request groups: which queries belong to one request and how many keys they look at, as kernels read it.

Queries of a request lie one behind the other and share its pages. Either ``indices`` says whose they are,
with a length for each query, or every request has the same number of queries, and each of those looks at one
key more than the one before it; the last one looks at all.

All macros run on scalar units and in SIMT functions alike. They hold their results in variables.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.spec import DYNAMIC
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter

REQUEST_GROUPS_SOURCE = "kaas.kernel_library.attention.request_groups"
"""For ``Family.sources`` of a family built on this module."""

MAX_NEXT_N = 64


class RequestGroups(msgspec.Struct, frozen=True):
    """Macros of one call's requests.

    ``length_of(call, query)`` is how many keys a query looks at; ``is_first(call, query)`` is 1 for the
    first query of a request; ``request_at(call, first)`` returns the number of queries of the request that
    begins at ``first`` and the most keys that one of them looks at; ``number_of(first)`` is the request's
    row in tables.
    """

    length_of: Callable[[Any, Any], Any]
    is_first: Callable[[Any, Any], Any]
    request_at: Callable[[Any, Any], Any]
    number_of: Callable[[Any], Any]


def request_groups(tokens: Any, next_n: int | None, most_keys: Any) -> RequestGroups:
    """The macros for ``tokens`` queries, ``next_n`` to a request or, with ``None``, as ``indices`` says.

    No length is below 0 or above ``most_keys``.
    """
    import tilelang.ascend.language as T

    @T.macro
    def length_of(call: Any, query: Any) -> Any:
        length = T.alloc_var("int32")
        if next_n is None:
            length = call.context_lens[query]
        else:
            length = call.context_lens[T.truncdiv(query, next_n)] - (next_n - 1 - T.truncmod(query, next_n))
        length = T.min(T.max(length, 0), most_keys)
        return length

    @T.macro
    def is_first(call: Any, query: Any) -> Any:
        first = T.alloc_var("int32")
        first = 1
        if next_n is None:
            if T.And(query > 0, call.indices[query] == call.indices[query - 1]):
                first = 0
        else:
            if T.truncmod(query, next_n) > 0:
                first = 0
        return first

    @T.macro
    def request_at(call: Any, first: Any) -> Any:
        count = T.alloc_var("int32")
        longest = T.alloc_var("int32")
        more = T.alloc_var("int32")
        if next_n is None:
            count = 1
            longest = length_of(call, first)
            # A condition with loads would be read once, ahead of the loop.
            more = 1
            while more > 0:
                more = 0
                if T.And(first + count < tokens, call.indices[first + count] == call.indices[first]):
                    longest = T.max(longest, length_of(call, first + count))
                    count += 1
                    more = 1
        else:
            count = next_n
            longest = length_of(call, first + next_n - 1)
        return count, longest

    def number_of(first: Any) -> Any:
        return first if next_n is None else T.truncdiv(first, next_n)

    return RequestGroups(length_of, is_first, request_at, number_of)


def query_extent(tokens: int | str, next_n: int | None, factor: int = 1) -> Extent:
    """``factor`` times the number of queries as an extent of parameters."""
    if tokens != DYNAMIC:
        return int(tokens) * factor
    count, symbol = (1, "tokens") if next_n is None else (next_n, "requests")
    return symbol if count * factor == 1 else f"{symbol}*{count * factor}"


def request_extent(tokens: int | str, next_n: int | None) -> Extent:
    """The number of rows of tables: of queries, or of requests with ``next_n`` queries each."""
    if next_n is None:
        return query_extent(tokens, None)
    return "requests" if tokens == DYNAMIC else int(tokens) // next_n


def request_parameters(tokens: int | str, next_n: int | None) -> tuple[Parameter, ...]:
    """context_lens, and indices unless every request has ``next_n`` queries."""
    lengths = Parameter(
        name="context_lens", role="in", dtype="int32", shape=(request_extent(tokens, next_n),)
    )
    if next_n is not None:
        return (lengths,)
    return (lengths, Parameter(name="indices", role="in", dtype="int32", shape=(query_extent(tokens, None),)))
