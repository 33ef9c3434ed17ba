"""Status mapping: complete, and safe for whatever an error's details hold."""

from __future__ import annotations

import json

import pytest

from kaas.proto import errors
from kaas.proto.errors import InvalidSpec, KaasError
from kaas.server.status import (
    _TABLE,
    as_kaas_error,
    error_record_json,
    grpc_status,
    http_problem,
    http_status,
    problem_document,
)

CLASSES = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, KaasError)
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.code)
def test_every_error_class_has_an_entry_of_its_own(cls: type[KaasError]) -> None:
    assert cls in _TABLE
    assert 400 <= http_status(cls("x")) < 600


def test_an_unlisted_subclass_takes_its_nearest_base() -> None:
    class Stranger(InvalidSpec):
        code = "invalid_spec"

    assert grpc_status(Stranger("x")) is grpc_status(InvalidSpec("x"))
    assert http_status(Stranger("x")) == 400


def test_a_problem_document_carries_the_record() -> None:
    error = InvalidSpec("n is 0", field="n", legal="a positive integer")
    document = problem_document(error)
    assert document["type"] == "urn:kaas:error:invalid_spec"
    assert document["status"] == 400
    assert document["details"] == {"field": "n", "legal": "a positive integer"}


def test_a_record_survives_what_json_cannot_spell() -> None:
    error = InvalidSpec("bad \ud800", field="f", legal=[float("nan"), 10**30, b"\xff", {"\udc00": {1}}])
    record = json.loads(error_record_json(error))
    assert record["code"] == "invalid_spec"
    assert "\\ud800" in record["message"]


def test_our_own_errors_pass_through_unchanged() -> None:
    error = InvalidSpec("x")
    assert as_kaas_error(error) is error


def test_unknown_status_codes_still_make_a_document() -> None:
    assert http_problem(499, "gone")["title"] == "Error"
