"""Paging: what the daemon lists in pages, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Item = TypeVar("Item")

_PAGE = 500


def all_of(
    pages: Callable[..., Any],
    field: str,
    item: Callable[[Any], Item],
    limit: int | None = None,
    **filters: Any,
) -> tuple[list[Item], int]:
    """At most ``limit`` items, and how many there are.

    ``pages`` takes page_size, page_token and ``filters``; a page has its messages in ``field``.
    """
    found: list[Item] = []
    token = ""
    while True:
        size = _PAGE if limit is None else min(_PAGE, limit - len(found))
        page = pages(page_size=size, page_token=token, **filters)
        found.extend(map(item, getattr(page, field)))
        token = page.next_page_token
        if not token or (limit is not None and len(found) >= limit):
            return found, page.total
