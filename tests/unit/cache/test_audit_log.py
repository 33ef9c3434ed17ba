"""The audit log: bounded, readable whatever its end looks like, private, and never in the way."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kaas.cache.audit_log import AuditLog
from kaas.cache.layout import StoreLayout


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return StoreLayout(tmp_path)


def line(number: int) -> bytes:
    return json.dumps({"number": number, "pad": "x" * 80}).encode()


def numbers(log: AuditLog, containing: bytes = b"") -> list[int]:
    return [record["number"] for record in log.records(containing)]


def size(layout: StoreLayout) -> int:
    files = (layout.audit_file, layout.older_audit_file)
    return sum(path.stat().st_size for path in files if path.exists())


def test_lines_come_back_in_order_over_restarts(layout: StoreLayout) -> None:
    AuditLog(layout, 1 << 20).append([line(1), line(2)])
    AuditLog(layout, 1 << 20).append([line(3)])
    assert numbers(AuditLog(layout, 1 << 20)) == [1, 2, 3]
    assert numbers(AuditLog(layout, 1 << 20), b'"number": 2,') == [2]


def test_it_is_bounded_and_loses_the_oldest(layout: StoreLayout) -> None:
    log = AuditLog(layout, 4000)
    for number in range(500):
        log.append([line(number)])
        assert size(layout) <= 4000
    kept = numbers(log)
    assert kept == list(range(kept[0], 500))
    assert len(kept) >= 15


def test_only_the_daemons_user_reads_it(layout: StoreLayout) -> None:
    previous = os.umask(0)
    try:
        AuditLog(layout, 4000).append([line(1)])
    finally:
        os.umask(previous)
    assert layout.audit_file.stat().st_mode & 0o777 == 0o600
    assert layout.audit_file.parent.stat().st_mode & 0o777 == 0o700


def test_a_torn_end_costs_its_own_line_only(layout: StoreLayout) -> None:
    AuditLog(layout, 1 << 20).append([line(1), line(2)])
    with layout.audit_file.open("r+b") as file:
        file.truncate(layout.audit_file.stat().st_size - 20)
    log = AuditLog(layout, 1 << 20)
    log.append([line(3)])
    log.append([line(4)])
    assert numbers(log) == [1, 3, 4]


def test_garbage_is_passed_over(layout: StoreLayout) -> None:
    log = AuditLog(layout, 1 << 20)
    log.append([line(1)])
    with layout.audit_file.open("ab") as file:
        file.write(b"\x00\xff\n[1,2]\n" + b"[" * 50_000 + b"\n")
    log.append([line(2)])
    assert numbers(log) == [1, 2]


def test_what_cannot_be_written_is_counted_and_not_raised(layout: StoreLayout) -> None:
    layout.audit_file.parent.write_text("not a directory")
    log = AuditLog(layout, 4000)
    log.append([line(1), line(2)])
    assert log.lost_lines == 2
    layout.audit_file.parent.unlink()
    log.append([line(3)])
    assert numbers(log) == [3]


def test_zero_bytes_turn_it_off(layout: StoreLayout) -> None:
    AuditLog(layout, 0).append([line(1)])
    assert not layout.audit_file.parent.exists()
