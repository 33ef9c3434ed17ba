"""Row 12: how long TileLang lowers each kernel of the library.

Every example spec of every family, in one process with TileLang warm, on one core: from the spec to
Ascend C source, in CPU seconds of all its threads: what it takes on an idle core at most, whatever the
neighbours do. No kernel may need more than 4 s; the ten slowest are named.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.effort import Effort
from benchmarks.node import DAEMON_CORE, SOC, child_environment, pinned_json
from benchmarks.outcome import Check, Outcome, Row, Series
from benchmarks.spread import spread

LIMIT_S = 4.0


def measure(effort: Effort) -> Outcome:
    """In a child on one core."""
    order = {"most": effort.times(500, 10), "rounds": effort.times(2)}
    taken = pinned_json("lowering", order, child_environment(), core=DAEMON_CORE, timeout=3600)
    middle = {name: spread(samples)["median"] for name, samples in taken.items()}
    slowest = sorted(middle.items(), key=lambda item: -item[1])[:10]
    series = {"12 all kernels": Series(list(middle.values()))}
    series |= {f"12 {name}": Series(taken[name]) for name, _ in slowest}
    row = Row(
        number="12",
        measured=f"lowering of {len(middle)} example specs of the library, the slowest of them",
        against="nothing",
        checks=(Check(what=slowest[0][0], value=slowest[0][1], unit="s", direction="<=", target=LIMIT_S),),
    )
    over = [name for name, seconds in middle.items() if seconds > LIMIT_S]
    notes = (
        [f"{len(over)} of {len(middle)} specs need more than {LIMIT_S:g} s: {', '.join(over)}"]
        if over
        else []
    )
    return Outcome(rows=[row], series=series, notes=notes)


def _samples(most: int, rounds: int) -> dict[str, Any]:
    """In the child: seconds by spec; what was fast is measured again, what was slow only once more."""
    from benchmarks.library_specs import examples
    from kaas import GemmSpec
    from kaas.compiler.lowering import lower
    from kaas.kernel_library.targets import target_named

    target = target_named(SOC)
    lower(GemmSpec(n=256, k=256, m=256), target)
    taken: dict[str, list[float]] = {}
    numbers: dict[str, int] = {}
    chosen = examples()
    for name, spec in chosen[:: max(1, len(chosen) // most)]:
        numbers[name] = numbers.get(name, 0) + 1
        samples = taken.setdefault(f"{name} ({numbers[name]})", [])
        for _ in range(rounds):
            begin = time.process_time()
            lower(spec, target)
            samples.append(time.process_time() - begin)
    return taken


if __name__ == "__main__":
    print(json.dumps(_samples(**json.loads(sys.argv[1]))))
