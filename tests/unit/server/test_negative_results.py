"""Failures remembered by key: which, for how long, how many, over restarts, and how they are cleared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kaas.kernel_library.targets import target_named
from kaas.proto.errors import (
    CompileFailed,
    CompileOutOfMemory,
    CompileTimeout,
    DoesNotFit,
    InternalError,
    InvalidRequest,
    KaasError,
    KernelNotFound,
    ShuttingDown,
    StoreFull,
    WorkerCrashed,
)
from kaas.proto.passport import SCHEMA_VERSION, Generator, Passport
from kaas.proto.toolchain import Toolchain
from kaas.server.failure_kind import LONGEST_DELAY_S, FailureKind, RetryPolicy, failure_kind
from kaas.server.negative_results import FILE_NAME, MAX_FAILURES, NegativeResults

REJECTED = CompileFailed("bisheng failed with status 1", stage="bisheng", deterministic=True, log_tail="no")
NOTHING = CompileFailed("the output is missing", stage="bisheng", deterministic=True, no_output=True)
CRASHED = CompileFailed("bisheng was killed", stage="bisheng", deterministic=False, signal="SIGSEGV")
STALE = CompileFailed("the toolkit has changed", stage="toolkit", deterministic=False)


def passport(n: int = 64, **toolchain: Any) -> Passport:
    return Passport(
        schema_version=SCHEMA_VERSION,
        spec={"family": "gemm", "n": n, "k": 64},
        target=target_named("Ascend950PR_9579"),
        toolchain=Toolchain(
            **{
                "kind": "twin",
                "cann_version": "9.0.0",
                "compiler_version": "twin",
                "bisheng_digest": "1" * 64,
                "linker_digest": "2" * 64,
                "headers_digest": "3" * 64,
                "host_arch": "x86_64",
                **toolchain,
            }
        ),
        generator=Generator(
            tilelang_version="0.1.15",
            tilelang_native_digest="4" * 64,
            templates_digest="5" * 64,
            lowering_digest="6" * 64,
            family_digest="7" * 64,
        ),
        options=("-O2",),
    )


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def results(**options: Any) -> NegativeResults:
    return NegativeResults(**{"lifetime_s": 3600, "transient_lifetime_s": 30, "clock": Clock(), **options})


@pytest.mark.parametrize(
    ("error", "kind", "is_repeated"),
    [
        (REJECTED, "deterministic", False),
        (DoesNotFit("UB is too small", field="n"), "deterministic", False),
        (NOTHING, "deterministic", True),
        (CRASHED, "transient", True),
        (CompileTimeout("too long"), "transient", True),
        (CompileOutOfMemory("too much"), "transient", True),
        (WorkerCrashed("killed"), "transient", True),
        (StoreFull("no room for temporary files"), "transient", True),
        (STALE, None, False),
        (ShuttingDown("stopping"), None, False),
        (InternalError("a bug"), None, False),
    ],
)
def test_failures_are_told_apart(error: KaasError, kind: FailureKind | None, is_repeated: bool) -> None:
    assert failure_kind(error) == kind
    assert (RetryPolicy(attempts=2).delay_s(error, 1) is not None) is is_repeated
    assert (results().remember(passport(), error, 1) is not None) is (kind is not None)


def test_pauses_double_to_a_bound_and_tries_end() -> None:
    policy = RetryPolicy(attempts=9, first_delay_s=1.0)
    delays = [policy.delay_s(CRASHED, attempts) for attempts in range(1, 10)]
    assert delays == [1, 2, 4, 8, 16, LONGEST_DELAY_S, LONGEST_DELAY_S, LONGEST_DELAY_S, None]


def test_a_remembered_failure_says_what_when_and_how_to_clear_it() -> None:
    remembered = results()
    failure = remembered.remember(passport(), REJECTED, 1)
    assert failure is not None
    with pytest.raises(CompileFailed, match="bisheng failed with status 1") as answer:
        remembered.answer(failure.key)
    details = answer.value.details
    assert details["log_tail"] == "no"
    assert details["failed_unix"] == 1_800_000_000.0
    assert details["expires_unix"] == 1_800_003_600.0
    assert "2027-01-15 08:00:00 UTC" in (answer.value.hint or "")
    assert f"kaas failures --clear {failure.key[:12]}" in (answer.value.hint or "")
    assert remembered.answered(failure.key) == 1


def test_another_toolchain_asks_again() -> None:
    remembered = results()
    remembered.remember(passport(), REJECTED, 1)
    remembered.answer(passport(cann_version="9.1.0").key())
    with pytest.raises(CompileFailed):
        remembered.answer(passport().key())


def test_each_kind_has_its_lifetime() -> None:
    clock = Clock()
    remembered = results(clock=clock)
    remembered.remember(passport(1), REJECTED, 1)
    remembered.remember(passport(2), CRASHED, 2)
    assert [failure.kind for failure in remembered.all()] == ["transient", "deterministic"]
    clock.now += 31
    assert [failure.kind for failure in remembered.all()] == ["deterministic"]
    remembered.answer(passport(2).key())
    clock.now += 3600
    remembered.answer(passport(1).key())
    assert remembered.all() == []


def test_a_clock_set_back_does_not_make_a_failure_last() -> None:
    clock = Clock()
    remembered = results(clock=clock)
    remembered.remember(passport(), REJECTED, 1)
    clock.now -= 86_400
    remembered.answer(passport().key())


def test_no_lifetime_is_no_memory() -> None:
    remembered = results(lifetime_s=0, transient_lifetime_s=0)
    assert remembered.remember(passport(1), REJECTED, 1) is None
    assert remembered.remember(passport(2), CRASHED, 1) is None


def test_failures_are_cleared_by_key_by_prefix_and_all_together() -> None:
    remembered = results()
    keys = [remembered.remember(passport(n), REJECTED, 1).key for n in range(1, 5)]  # type: ignore[union-attr]
    assert remembered.clear(keys[0]) == [keys[0]]
    assert remembered.clear(keys[1][:8]) == [keys[1]]
    remembered.forget(keys[2])
    remembered.answer(keys[0])
    with pytest.raises(KernelNotFound):
        remembered.clear(keys[0])
    for text in ("", "abc", "ABCDEF", "../../x", "g" * 64):
        with pytest.raises(InvalidRequest):
            remembered.clear(text)
    assert remembered.clear_all() == [keys[3]]
    assert remembered.all() == []


def test_the_memory_is_bounded_and_loses_the_oldest() -> None:
    remembered = results(limit=3)
    for n in range(1, 6):
        remembered.remember(passport(n), REJECTED, 1)
    assert [failure.passport.spec["n"] for failure in remembered.all()] == [5, 4, 3]
    assert MAX_FAILURES >= 100


def opened(root: Path, **lifetimes: float) -> NegativeResults:
    return NegativeResults.in_store(
        root, root, **{"lifetime_s": 3600.0, "transient_lifetime_s": 30.0, **lifetimes}
    )


def test_failures_survive_a_restart_with_long_logs_cut(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.remember(passport(), CompileFailed("no", deterministic=True, log_tail="x" * 100_000 + "end"), 2)
    first.close()
    assert (tmp_path / FILE_NAME).stat().st_size < 12_000
    again = opened(tmp_path)
    with pytest.raises(CompileFailed) as answer:
        again.answer(passport().key())
    assert answer.value.details["log_tail"].endswith("end")
    assert answer.value.details["attempts"] == 2
    again.clear_all()
    again.close()
    third = opened(tmp_path)
    assert third.all() == []
    third.close()


def test_a_shorter_lifetime_holds_for_what_is_already_remembered(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.remember(passport(), REJECTED, 1)
    first.close()
    again = opened(tmp_path, lifetime_s=0.0)
    assert again.all() == []
    again.close()


@pytest.mark.parametrize("content", [b"", b"[", b"\x00" * 100, b'[{"key": "a"}]', b"{}"])
def test_a_damaged_file_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    remembered = opened(tmp_path)
    assert remembered.all() == []
    remembered.remember(passport(), REJECTED, 1)
    remembered.close()
    assert len(json.loads((tmp_path / FILE_NAME).read_bytes())) == 1


def test_an_edited_file_cannot_answer_for_another_key(tmp_path: Path) -> None:
    first = opened(tmp_path)
    failure = first.remember(passport(), REJECTED, 1)
    assert failure is not None
    first.close()
    other = passport(128).key()
    forged = msgspec.structs.replace(failure, key=other)
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode([forged]))
    again = opened(tmp_path)
    again.answer(other)
    assert again.all() == []
    again.close()


def test_a_disk_that_takes_nothing_costs_the_memory_over_restarts_only(tmp_path: Path) -> None:
    remembered = NegativeResults.in_store(
        tmp_path / "absent", tmp_path, lifetime_s=3600, transient_lifetime_s=30
    )
    remembered.remember(passport(), REJECTED, 1)
    with pytest.raises(CompileFailed):
        remembered.answer(passport().key())
    remembered.close()
    assert list(tmp_path.iterdir()) == []
