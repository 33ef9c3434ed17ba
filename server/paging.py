"""Paging: one page of a sequence that is all in memory, and the token of the next."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TypeVar

from kaas.proto.errors import InvalidRequest

Item = TypeVar("Item")

MAX_PAGE = 500


def page_of(items: Sequence[Item], size: int, token: str) -> tuple[Sequence[Item], str, int]:
    """One page of a short sequence, the token of the next (empty on the last), and the total.

    Raises :class:`InvalidRequest` for a page size or token out of range.
    """
    if not 1 <= size <= MAX_PAGE:
        raise InvalidRequest(f"page_size is {size}", field="page_size", legal=f"1 to {MAX_PAGE}")
    start = 0
    if token:
        try:
            start = int(base64.urlsafe_b64decode(token.encode()))
        except (ValueError, binascii.Error):
            start = -1
        if not 0 <= start <= len(items):
            raise InvalidRequest(
                "the page token is not one of ours", field="page_token", legal="a next_page_token"
            )
    end = start + size
    more = base64.urlsafe_b64encode(str(end).encode()).decode() if end < len(items) else ""
    return items[start:end], more, len(items)
