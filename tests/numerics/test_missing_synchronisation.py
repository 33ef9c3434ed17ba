"""Kernels with synchronisation taken out: nearly every deletion that matters is noticed on the twin.

Each kernel is compiled once, with a switch before every synchronisation statement. A deletion is noticed when
the twin reports a flag that is missing or left over, an access that nothing orders, or a wrong number.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass, field

import pytest
from support.synchronisation_cases import CASES, Case
from support.synchronisation_mutants import Mutant, mutants, removed, statements, switchable
from support.twin_kernels import TwinKernel, altered_kernel, lowered
from support.twin_toolkit import happens_before, schedule

from kaas.proto.errors import DeviceError

CORES = 4
FEW_SEEDS, MANY_SEEDS = range(8), range(24)
LEAST_SHARE = 0.95
SYNCHRONISATION = re.compile(r"asc_sync|asc_lock|asc_unlock|mem_bar")
"""Every mention of one in a source, so that no statement is left out for the way it is written."""

_LAST = "its function touches those bytes no more, and the next one starts when that one has ended"
EQUIVALENT: dict[str, dict[str, str]] = {
    "aux_fi": {"simd_inst::mem_bar(VST_VLD); #1": _LAST, "simd_inst::mem_bar(VST_VLD); #2": _LAST},
    "mla_prefill": {
        "AIC PIPE_FIX>PIPE_M": (
            "with four accumulators and two of them in each block, weights that the product waits for were "
            "made of scores that left later than what the accumulator had"
        ),
    },
    "moe_gate": {"simd_inst::mem_bar(VLD_VST); #1": _LAST},
    "rmsnorm_backward": {
        "PIPE_V>PIPE_MTE3 static_cast<event_t>(4)": (
            "every part has row groups, and MTE3 has waited for V to end the last one, which wrote the sums"
        )
    },
}
"""Deletions that change nothing, by kernel and name, with the reason. One that is noticed fails its test."""


@dataclass
class Score:
    """What became of the mutants of one kernel."""

    noticed: Counter[str] = field(default_factory=Counter)
    equivalent: set[str] = field(default_factory=set)
    missed: list[str] = field(default_factory=list)
    refuted: list[str] = field(default_factory=list)  # listed as equivalent, but noticed
    unknown: set[str] = field(default_factory=set)  # listed, but not among the mutants

    @property
    def mattering(self) -> int:
        return self.noticed.total() + len(self.missed)


@functools.cache
def switchable_kernel(name: str) -> TwinKernel:
    return altered_kernel(CASES[name].spec, CORES, switchable)


def mutants_of(name: str) -> list[Mutant]:
    return mutants(lowered(CASES[name].spec, CORES).source)


def finding(case: Case, built: TwinKernel, mutant: Mutant | None) -> str | None:
    """What a launch says in the schedule that is set: the kind of a finding, or None."""
    with removed(mutant):
        try:
            case.run(built)
        except AssertionError:
            return "wrong number"
        except DeviceError as error:
            return "race" if "race (" in str(error) else "flag accounting"
    return None


def finding_of_seeds(case: Case, built: TwinKernel, mutant: Mutant | None, seeds: range) -> str | None:
    for seed in seeds:
        with schedule("adversarial", seed):
            if finding(case, built, mutant):
                return "adversarial schedule"
    return None


def finding_of_all(case: Case, built: TwinKernel, mutant: Mutant | None) -> str | None:
    with happens_before():
        found = finding(case, built, mutant)
    return found or finding_of_seeds(case, built, mutant, FEW_SEEDS)


@functools.cache
def score(name: str) -> Score:
    result, case, built = Score(), CASES[name], switchable_kernel(name)
    listed = EQUIVALENT.get(name, {})
    made = mutants_of(name)
    for mutant in made:
        found = finding_of_all(case, built, mutant)
        if mutant.name in listed:
            result.equivalent.add(mutant.name)
            if found:
                result.refuted.append(f"{mutant.name}: {found}")
        elif found:
            result.noticed[found] += 1
        else:
            result.missed.append(mutant.name)
    result.unknown = listed.keys() - {mutant.name for mutant in made}
    return result


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_in_one_piece_passes_and_its_equivalent_deletions_are_up_to_date(name: str) -> None:
    source = lowered(CASES[name].spec, CORES).source
    assert 0 < len(statements(source)) == len(SYNCHRONISATION.findall(source))
    assert finding_of_all(CASES[name], switchable_kernel(name), None) is None
    result = score(name)
    assert not result.refuted
    assert not result.unknown
    assert result.noticed.total() > len(result.missed) + len(result.equivalent)


@pytest.mark.parametrize("name", ["gemm", "gemm vector epilogue", "rmsnorm"])
def test_adversarial_schedules_alone_notice_every_missing_pair_of_flags(name: str) -> None:
    case, built = CASES[name], switchable_kernel(name)
    pairs = [mutant for mutant in mutants_of(name) if len(mutant.removed) > 1]
    assert pairs
    assert [one.name for one in pairs if not finding_of_seeds(case, built, one, MANY_SEEDS)] == []


def test_nearly_every_deletion_that_matters_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {name: score(name) for name in CASES}
    total: Counter[str] = sum((one.noticed for one in scores.values()), Counter())
    mattering = sum(one.mattering for one in scores.values())
    kinds = [kind for kind, _ in total.most_common()]
    with capsys.disabled():
        print("\n\nDeleted synchronisation: of those that matter, how many are noticed, and by what")
        for name, one in scores.items():
            counts = ", ".join(f"{one.noticed[kind]} {kind}" for kind in kinds if one.noticed[kind])
            equivalent = f"; {len(one.equivalent)} change nothing" if one.equivalent else ""
            print(f"  {name:22} {one.noticed.total():3} of {one.mattering:3}: {counts}{equivalent}")
            for missed in one.missed:
                print(f"    missed: {missed}")
        counts = ", ".join(f"{count} {kind}" for kind, count in total.most_common())
        print(f"  {'all':22} {total.total():3} of {mattering:3} ({total.total() / mattering:.1%}): {counts}")
    assert total.total() >= LEAST_SHARE * mattering
