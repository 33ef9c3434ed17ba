"""Lengths and requests of queries, as the references of the paged indexer's kernels read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lengths_of(inputs: Mapping[str, Any], next_n: int | None, most: int) -> list[int]:
    """How many keys each query looks at, 0 .. ``most``."""
    lengths: list[int] = inputs["context_lens"].tolist()
    if next_n is not None:
        lengths = [length - next_n + 1 + one for length in lengths for one in range(next_n)]
    return [min(max(length, 0), most) for length in lengths]


def requests_of(inputs: Mapping[str, Any], next_n: int | None) -> list[tuple[int, int]]:
    """First query and number of queries of each request, in order."""
    if next_n is not None:
        return [(next_n * one, next_n) for one in range(len(inputs["context_lens"]))]
    found: list[tuple[int, int]] = []
    before = None
    for query, request in enumerate(inputs["indices"].tolist()):
        if found and request == before:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((query, 1))
        before = request
    return found
