"""Pins: they hold, end, survive a restart, and are all or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kernels import passport

from kaas.cache import pins as pins_module
from kaas.cache.layout import StoreLayout
from kaas.cache.pins import Pins
from kaas.proto.errors import InvalidRequest, StoreUnavailable

A, B, C = (passport(n).key() for n in (1, 2, 3))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    layout = StoreLayout(tmp_path)
    layout.staging.mkdir()
    return layout


def test_a_pin_holds_until_it_is_unpinned_and_over_restarts(layout: StoreLayout) -> None:
    Pins(layout).pin([A, B], "release")
    pins = Pins(layout)
    assert pins.is_pinned(A)
    assert not pins.is_pinned(C)
    assert {(pin.key, pin.reason) for pin in pins.all()} == {(A, "release"), (B, "release")}
    assert pins.unpin([A, C]) == [A]
    assert [pin.key for pin in Pins(layout).all()] == [B]
    assert list(layout.staging.iterdir()) == []


def test_a_pin_ends_at_its_time(layout: StoreLayout) -> None:
    clock = Clock()
    pins = Pins(layout, clock)
    pins.pin([A], "for now", expires_unix=1100.0)
    clock.now = 1099.0
    assert pins.is_pinned(A)
    clock.now = 1100.0
    assert not pins.is_pinned(A)
    assert pins.get(A) is None
    assert pins.all() == []
    assert pins.unpin([A]) == []
    pins.pin([B], "else")  # which also forgets what has ended
    assert A not in layout.pins_file.read_text()


def test_pinning_again_replaces_reason_and_end(layout: StoreLayout) -> None:
    pins = Pins(layout, Clock())
    pins.pin([A], "first", expires_unix=2000.0)
    pins.pin([A], "second")
    pin = pins.get(A)
    assert pin is not None
    assert (pin.reason, pin.expires_unix) == ("second", 0.0)


@pytest.mark.parametrize(
    ("keys", "reason", "expires", "field"),
    [
        ([A], " ", 0.0, "reason"),
        ([A], "x" * 501, 0.0, "reason"),
        ([A, "not a key"], "r", 0.0, "key"),
        ([A], "r", 999.0, "expires"),
    ],
)
def test_what_is_wrong_pins_nothing(
    layout: StoreLayout, keys: list[str], reason: str, expires: float, field: str
) -> None:
    pins = Pins(layout, Clock())
    with pytest.raises(InvalidRequest) as refusal:
        pins.pin(keys, reason, expires)
    assert refusal.value.details["field"] == field
    assert pins.all() == []
    assert not layout.pins_file.exists()


def test_there_is_a_bound(layout: StoreLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins_module, "MAX_PINS", 2)
    pins = Pins(layout)
    pins.pin([A, B], "r")
    pins.pin([A], "again")
    with pytest.raises(InvalidRequest, match="3 pins"):
        pins.pin([C], "r")


def test_pins_that_cannot_be_written_do_not_hold(layout: StoreLayout) -> None:
    pins = Pins(layout)
    pins.pin([A], "r")
    layout.staging.rmdir()
    with pytest.raises(StoreUnavailable):
        pins.pin([B], "r")
    with pytest.raises(StoreUnavailable):
        pins.unpin([A])
    assert [pin.key for pin in pins.all()] == [A] == [pin.key for pin in Pins(layout).all()]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version":1,"pins":[{"key":1}]}', b"\xff\xfe", b"[" * 10**5]
)
def test_a_file_that_is_none_pins_nothing_and_is_replaced(layout: StoreLayout, content: bytes) -> None:
    layout.pins_file.write_bytes(content)
    pins = Pins(layout)
    assert pins.all() == []
    pins.pin([A], "r")
    assert Pins(layout).is_pinned(A)
