"""Errors: every class survives the way to another process, and no record from there can do harm."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kaas.proto import errors
from kaas.proto.errors import InvalidSpec, KaasError, error_from_record

CLASSES = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, KaasError)
]


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in CLASSES]
    assert len(set(codes)) == len(codes) >= 25


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("hint", [None, "do this next"])
def test_every_class_comes_back_as_itself(cls: type[KaasError], hint: str | None) -> None:
    details = {"field": "n", "legal": [1, "dynamic"], "nested": {"a": [None, 2.5]}, "path": "/x"}
    sent = cls("n is 0", hint=hint, **details)
    received = error_from_record(msgspec.json.decode(msgspec.json.encode(sent.to_record())))
    assert type(received) is cls
    assert (received.message, received.hint, received.details) == ("n is 0", hint, details)
    assert str(received) == str(sent)
    assert received.retryable is cls.retryable


def test_the_text_carries_the_hint() -> None:
    assert str(KaasError("no daemon", hint="kaas serve")) == "no daemon (kaas serve)"


def test_details_without_a_value_are_left_out() -> None:
    assert InvalidSpec("bad", field=None, near=None).to_record() == {
        "code": "invalid_spec",
        "message": "bad",
        "details": {},
    }


def test_an_unknown_code_becomes_the_base_class_and_is_kept() -> None:
    received = error_from_record({"code": "from_the_future", "message": "new", "details": {"a": 1}})
    assert type(received) is KaasError
    assert received.details == {"a": 1, "remote_code": "from_the_future"}


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"code": None},
        {"code": 5, "message": ["x"]},
        {"code": "invalid_spec", "details": {"legal": 5, "field": {}}},
        {"code": "invalid_spec", "details": {"message": "again", "hint": "again", "self": 1, "code": "x"}},
        {"code": "compile_failed", "message": "m", "hint": 7, "details": [1, 2]},
        {"code": "compile_failed", "message": "m", "details": {1: 2}},
    ],
)
def test_no_record_breaks_the_reader(record: dict[Any, Any]) -> None:
    received = error_from_record(record)
    assert isinstance(received, KaasError)
    assert isinstance(str(received), str)
    assert isinstance(received.to_record()["details"], dict)
