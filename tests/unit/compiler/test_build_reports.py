"""Excerpts, bounded logs and memory judgements: what a failed build leaves for a person to read."""

from __future__ import annotations

from kaas.compiler.device_build import source_excerpt
from kaas.compiler.guarded_process import BoundedLog, MemoryGauge

SOURCE = "\n".join(f"line {number};" for number in range(1, 21))


def test_the_excerpt_surrounds_the_first_error_and_marks_it():
    log = (
        "kernel.asc:2:1: warning: unused\n"
        "kernel.asc:10:3: error: no such thing\n"
        "kernel.asc:15:3: error: more\n"
    )

    excerpt = source_excerpt(SOURCE, log)

    lines = excerpt.splitlines()
    assert [line for line in lines if line.startswith(">")] == [">   10 | line 10;"]
    assert lines[0].endswith("line 6;")
    assert lines[-1].endswith("line 14;")


def test_a_log_that_names_no_line_of_the_source_has_no_excerpt():
    assert source_excerpt(SOURCE, "ld.lld: error: undefined symbol\n") is None
    assert source_excerpt(SOURCE, "kernel.asc:999: error: beyond the end\n") is None


def test_a_long_log_keeps_its_beginning_and_its_end():
    log = BoundedLog(head=10, tail=10)
    log.add(b"0123456789abc")
    log.add(b"x" * 100_000)
    log.add(b"the end...")

    text = log.text()

    assert text.startswith("0123456789\n[...")
    assert text.endswith("the end...")
    assert len(text) < 100
    assert BoundedLog().text() == ""


def test_a_spike_in_one_measurement_is_not_a_broken_limit():
    gauge = MemoryGauge(100)

    verdicts = [gauge.is_exceeded_by(held) for held in (50, 500, 60, 500, 499)]

    assert verdicts == [False, False, False, False, True]
    assert gauge.peak_bytes == 499
