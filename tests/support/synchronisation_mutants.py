"""Generated sources with every synchronisation statement removable at run time, one image for all mutants."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

VARIABLE = "KAAS_TEST_REMOVED"

_STATEMENT = re.compile(
    r"(?m)^(?P<indent>[ \t]*)(?P<text>(?:simd_inst::)?(?P<operation>asc_sync_(?:notify|wait|pipe)"
    r"|asc_sync_(?:intra|inter)_(?:arrive|wait)|asc_lock|asc_unlock|mem_bar)\((?P<arguments>.*)\);)[ \t]*$"
)
_CORE = re.compile(r"\bif ASC_IS_(AIC|AIV)\b")

# Removed statements are named in the environment, which a test changes between launches of one image.
_SWITCH = f"""
#include <cstdlib>
#include <cstring>
__attribute__((no_sanitize("thread"))) static bool kaas_test_kept(const char* mark) {{
  const char* removed = getenv("{VARIABLE}");
  return removed == nullptr || strstr(removed, mark) == nullptr;
}}
"""


@dataclass(frozen=True)
class Statement:
    """One synchronisation statement: what it does, where, and the text of its arguments."""

    number: int
    core: str
    operation: str
    arguments: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Mutant:
    """A source without some of its statements; the name survives changes elsewhere in the source."""

    name: str
    removed: frozenset[int]


def statements(source: str) -> list[Statement]:
    """Every synchronisation statement in the order of the text."""
    cores = [(match.start(), match.group(1)) for match in _CORE.finditer(source)]
    found = []
    for number, match in enumerate(_STATEMENT.finditer(source)):
        core = next((name for start, name in reversed(cores) if start < match.start()), "")
        arguments = tuple(part.strip() for part in _split(match.group("arguments")))
        found.append(Statement(number, core, match.group("operation"), arguments, match.group("text")))
    return found


def switchable(source: str) -> str:
    """The source with a switch before every synchronisation statement."""
    count = iter(range(len(source)))

    def guard(match: re.Match[str]) -> str:
        return f'{match["indent"]}if (kaas_test_kept("|{next(count)}|")) {match["text"]}'

    return _SWITCH + _STATEMENT.sub(guard, source)


@contextmanager
def removed(mutant: Mutant | None) -> Iterator[None]:
    """Launches of a switchable image inside run without the statements of the mutant."""
    numbers = sorted(mutant.removed) if mutant else []
    os.environ[VARIABLE] = "".join(f"|{number}|" for number in numbers)
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def mutants(source: str) -> list[Mutant]:
    """Every statement alone, and every set of statements whose absence no counter notices.

    Such sets are both halves of all flags between two pipes, both halves of one flag, one direction of the
    counters between cores, one counter between blocks, and one lock.
    """
    found = statements(source)
    groups: dict[str, set[int]] = {}
    for one in found:
        for name in _groups(one):
            groups.setdefault(name, set()).add(one.number)
    named: dict[frozenset[int], str] = {}
    for name, numbers in groups.items():
        if len(numbers) > 1:
            named.setdefault(frozenset(numbers), name)
    repeats: Counter[str] = Counter()
    for one in found:
        text = f"{one.core} {one.text}".strip()
        repeats[text] += 1
        named.setdefault(frozenset([one.number]), f"{text} #{repeats[text]}")
    return [Mutant(name, numbers) for numbers, name in named.items()]


def _groups(one: Statement) -> list[str]:
    if one.operation in ("asc_sync_notify", "asc_sync_wait"):
        source, target, flag = one.arguments
        pipes = f"{one.core} {source}>{target}".strip()
        return [pipes, f"{pipes} {flag}"]
    if one.operation.startswith("asc_sync_intra"):
        arrives = one.operation.endswith("arrive")
        sender = one.core if arrives else {"AIC": "AIV", "AIV": "AIC"}[one.core]
        return [f"counters set by the {sender}"]
    if one.operation.startswith("asc_sync_inter"):
        return [f"counter {one.arguments[-1]} between blocks"]
    if one.operation in ("asc_lock", "asc_unlock"):
        return [f"lock {one.arguments[1]}"]
    return []


def _split(arguments: str) -> list[str]:
    """At the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, sign in enumerate(arguments):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append(arguments[start:at])
            start = at + 1
    return [*parts, arguments[start:]]
