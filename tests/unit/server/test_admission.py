"""What a compile sets aside, what is learned from it, and how many fit the budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kaas.proto.errors import CompileOutOfMemory
from kaas.server.admission import LOOK_AGAIN_S, SHARE, TOTAL_AGE_S, Admission, MemoryBudget
from kaas.server.compile_costs import FILE_NAME, FIRST_GUESS_S, MAX_FAMILIES, CompileCosts
from kaas.server.control_group import MemoryRoom

MIB = 1 << 20
GIB = 1 << 30


def costs(**options: int) -> CompileCosts:
    return CompileCosts(**{"first_guess_bytes": 2 * GIB, "limit_bytes": 8 * GIB, **options})


def admission(known: CompileCosts, *, budget_bytes: int, total_bytes: int = 16 * GIB) -> Admission:
    room = MemoryRoom(total_bytes=total_bytes, free_bytes=total_bytes)
    budget = MemoryBudget(budget_bytes, room=lambda: room)
    return Admission(slots=64, costs=known, budget=budget, limit_bytes=8 * GIB)


def how_many_fit(admitted: Admission, family: str) -> int:
    running, reserved = 0, 0
    need = admitted.need_bytes(family, after_shortage=False)
    while admitted.fits(need, running=running, reserved_bytes=reserved):
        running, reserved = running + 1, reserved + need
    return running


def test_an_unknown_family_is_guessed_and_a_known_one_remembered() -> None:
    known = costs()
    admitted = admission(known, budget_bytes=6 * GIB)
    assert how_many_fit(admitted, "gemm") == 3
    known.learn("gemm", peak_bytes=GIB, seconds=3.0)
    assert how_many_fit(admitted, "gemm") == 6
    assert how_many_fit(admitted, "rmsnorm") == 3
    assert (known.seconds("gemm"), known.seconds("rmsnorm")) == (3.0, 3.0)


def test_nothing_learned_is_a_guess_of_time_too() -> None:
    assert costs().seconds("gemm") == FIRST_GUESS_S


def test_a_high_peak_is_forgotten_slowly_and_a_higher_one_learned_at_once() -> None:
    known = costs()
    known.learn("gemm", peak_bytes=4 * GIB, seconds=1.0)
    known.learn("gemm", peak_bytes=GIB, seconds=1.0)
    assert 3 * GIB < known.peak_bytes("gemm") < 4 * GIB
    for _ in range(60):
        known.learn("gemm", peak_bytes=GIB, seconds=1.0)
    assert known.peak_bytes("gemm") < 1.01 * GIB
    known.learn("gemm", peak_bytes=5 * GIB, seconds=1.0)
    assert known.peak_bytes("gemm") == 5 * GIB


def test_a_shortage_makes_the_next_ones_set_aside_all_that_one_may_take() -> None:
    known = costs()
    known.learn("gemm", peak_bytes=GIB, seconds=1.0)
    known.learn_shortage("gemm")
    assert known.peak_bytes("gemm") == 8 * GIB
    assert known.least_bytes("gemm") == GIB


def test_one_compile_may_always_run_alone() -> None:
    known = costs()
    known.learn("gemm", peak_bytes=7 * GIB, seconds=1.0)
    admitted = admission(known, budget_bytes=2 * GIB)
    assert how_many_fit(admitted, "gemm") == 1
    admitted.refuse_impossible("gemm")


def test_what_never_fitted_this_node_is_refused_by_name() -> None:
    known = costs()
    known.learn("gemm", peak_bytes=7 * GIB, seconds=1.0)
    shrunk = admission(known, budget_bytes=0, total_bytes=4 * GIB)
    with pytest.raises(CompileOutOfMemory, match="'gemm' takes at least 7168 MiB") as refusal:
        shrunk.refuse_impossible("gemm")
    assert refusal.value.details["limit_bytes"] == 4 * GIB
    shrunk.refuse_impossible("rmsnorm")  # nothing is known of it: it is tried


def test_a_found_budget_follows_the_memory_that_is_free() -> None:
    now = 100.0
    free = 10 * GIB
    held = 0
    budget = MemoryBudget(
        held=lambda: held,
        room=lambda: MemoryRoom(total_bytes=16 * GIB, free_bytes=free),
        clock=lambda: now,
    )
    assert budget.bytes == int(SHARE * 10 * GIB)
    free, held = 2 * GIB, 8 * GIB  # the compiles themselves took it
    now += LOOK_AGAIN_S
    assert budget.bytes == int(SHARE * 10 * GIB)
    free, held = GIB, GIB  # somebody else took it
    assert budget.bytes == int(SHARE * 10 * GIB)  # not measured again yet
    now += LOOK_AGAIN_S
    assert budget.bytes == int(SHARE * 2 * GIB)


def test_a_limit_that_was_lowered_is_noticed() -> None:
    now = 100.0
    total = 16 * GIB
    budget = MemoryBudget(
        room=lambda: MemoryRoom(total_bytes=total, free_bytes=GIB), held=lambda: 0, clock=lambda: now
    )
    assert budget.total_bytes == 16 * GIB
    total = 4 * GIB
    now += TOTAL_AGE_S
    assert budget.total_bytes == 4 * GIB


def test_a_compile_that_outgrew_what_it_set_aside_holds_back_others() -> None:
    room = MemoryRoom(total_bytes=16 * GIB, free_bytes=16 * GIB)
    held = MemoryBudget(6 * GIB, held=lambda: 5 * GIB, room=lambda: room)
    admitted = Admission(slots=8, costs=costs(), budget=held, limit_bytes=8 * GIB)
    assert not admitted.fits(2 * GIB, running=1, reserved_bytes=2 * GIB)
    assert admitted.fits(GIB, running=1, reserved_bytes=2 * GIB)


def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    def opened() -> CompileCosts:
        return CompileCosts.in_store(tmp_path, tmp_path, first_guess_bytes=2 * GIB, limit_bytes=8 * GIB)

    first = opened()
    first.learn("gemm", peak_bytes=300 * MIB, seconds=2.0)
    first.close()
    again = opened()
    assert (again.peak_bytes("gemm"), again.seconds("gemm")) == (300 * MIB, 2.0)
    again.close()
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"gemm": 1}', b"[]"])
def test_a_damaged_file_costs_what_was_learned_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    known = CompileCosts.in_store(tmp_path, tmp_path, first_guess_bytes=GIB, limit_bytes=8 * GIB)
    assert known.peak_bytes("gemm") == GIB
    known.learn("gemm", peak_bytes=MIB, seconds=1.0)
    known.close()
    assert json.loads((tmp_path / FILE_NAME).read_bytes())["gemm"]["peak_bytes"] == MIB


def test_what_is_learned_is_bounded(tmp_path: Path) -> None:
    known = CompileCosts.in_store(tmp_path, tmp_path, first_guess_bytes=GIB, limit_bytes=8 * GIB)
    for number in range(MAX_FAMILIES + 10):
        known.learn(f"family{number}", peak_bytes=MIB, seconds=1.0)
    known.close()
    stored = json.loads((tmp_path / FILE_NAME).read_bytes())
    assert len(stored) == MAX_FAMILIES
    assert "family0" not in stored
    assert f"family{MAX_FAMILIES + 9}" in stored
