"""Canonical JSON: one text per value."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.proto.canonical import canonical_digest, canonical_json

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def reversed_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: reversed_order(value[name]) for name in reversed(value)}
    return [reversed_order(item) for item in value] if isinstance(value, list) else value


@given(json_values)
def test_the_order_of_names_does_not_matter(value: Any) -> None:
    assert canonical_json(value) == canonical_json(reversed_order(value))
    assert canonical_digest(value) == canonical_digest(reversed_order(value))


@given(json_values)
def test_encoding_what_was_decoded_gives_the_same_text(value: Any) -> None:
    text = canonical_json(value)
    assert canonical_json(msgspec.json.decode(text)) == text
    assert canonical_json(json.loads(text)) == text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [1, [x]], lambda x: {"a": {"b": (x,)}}])
def test_numbers_that_json_cannot_spell_are_refused(number: float, wrap: Any) -> None:
    with pytest.raises(ValueError, match="canonical JSON"):
        canonical_json(wrap(number))


@pytest.mark.parametrize(
    ("left", "right"), [(1, True), (1, 1.0), (0.0, -0.0), ("1", 1), (None, "null"), ([], {})]
)
def test_values_that_python_may_call_equal_have_texts_of_their_own(left: Any, right: Any) -> None:
    assert canonical_json(left) != canonical_json(right)


def test_text_is_compact_sorted_utf8() -> None:
    assert canonical_json({"b": "é", "a": [1, 2.5]}) == '{"a":[1,2.5],"b":"é"}'.encode()
