"""Family filter: lists by family refuse a name that no family has, rather than be empty."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from kaas.kernel_library.registry import families
from kaas.proto.errors import InvalidRequest


def is_known_family(name: str) -> bool:
    """Whether this daemon has a family of that name; case does not matter, as in the filters."""
    return name.casefold() in {family.casefold() for family in families()}


def require_family(name: str, others: Iterable[str] = ()) -> None:
    """Raise :class:`InvalidRequest` unless ``name`` is empty, a family's, or among ``others``.

    ``others`` are families that something is listed of and that this daemon does not have any more.
    """
    if not name or is_known_family(name):
        return
    legal = sorted({*families(), *others})
    if name.casefold() in {other.casefold() for other in legal}:
        return
    near = difflib.get_close_matches(name, legal, n=3)
    suggestion = f"did you mean {', '.join(near)}?" if near else f"legal: {', '.join(legal)}"
    raise InvalidRequest(
        f"no kernel family is named {name[:80]!r}; {suggestion}",
        field="family",
        legal=legal,
        near=near or None,
    )
