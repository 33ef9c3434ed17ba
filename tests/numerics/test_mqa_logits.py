"""mqa_logits on the CPU twin against scores in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.core_counts import check_on_every_part
from support.indexer_inputs import UNIT, drawn, drawn_scales, drawn_weights
from support.kernel_checks import EXACT, Comparison, CalcDiff, check_kernel, compare_output, reference_of, run_once
from support.twin_kernels import kernel

from kaas.kernel_library.families.mqa_logits import MqaLogitsSpec

CORES = 4
RANDOM = CalcDiff(5e-4)
Windows = Callable[[int, int], tuple[list[int], list[int]]]


def causal(tokens: int, keys: int) -> tuple[list[int], list[int]]:
    """Each query looks at all keys up to its own, which are the last ones."""
    return [0] * tokens, [keys - tokens + 1 + token for token in range(tokens)]


def sliding(tokens: int, keys: int) -> tuple[list[int], list[int]]:
    """Windows that begin and end inside steps, blocks of 32 bytes and fractals."""
    starts = [(37 * token) % keys for token in range(tokens)]
    return starts, [min(start + 1 + (53 * token) % 600, keys) for token, start in enumerate(starts)]


def sequences(tokens: int, keys: int) -> tuple[list[int], list[int]]:
    """Three sequences one behind the other: windows far apart in one block."""
    third = keys // 3
    which = [3 * token // tokens for token in range(tokens)]
    return [one * third for one in which], [one * third + third for one in which]


def empty_and_single(tokens: int, keys: int) -> tuple[list[int], list[int]]:
    """Nothing, one key, nothing with the end before the start, the last key."""
    pattern = [(5, 5), (keys // 2, keys // 2 + 1), (9, 3), (keys - 1, keys)]
    return [pattern[t % 4][0] for t in range(tokens)], [pattern[t % 4][1] for t in range(tokens)]


def outside(tokens: int, keys: int) -> tuple[list[int], list[int]]:
    """Windows that reach over both ends of the keys, and one behind them."""
    pattern = [(-7, keys + 300), (keys + 3, keys + 9), (keys - 40, keys + 1), (-9, -2), (-300, 17)]
    return [pattern[t % 5][0] for t in range(tokens)], [pattern[t % 5][1] for t in range(tokens)]


def inputs(
    spec: MqaLogitsSpec,
    tokens: int,
    keys: int,
    windows: Windows,
    *,
    integers: bool,
    columns: int | None = None,
    seed: int = 1,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    starts, ends = windows(tokens, keys)
    room = columns or max(1, max(end - start for start, end in zip(starts, ends, strict=True)))
    exponents = (UNIT - 1, UNIT + 1) if integers else (UNIT - 9, UNIT + 3)
    given: dict[str, Any] = {
        "q": drawn((tokens, spec.heads, spec.head_dim), spec.dtype, generator, integers=integers),
        "q_scales": drawn_scales(tokens * spec.heads, spec.head_dim, generator, exponents),
        "kv": drawn((keys, spec.head_dim), spec.dtype, generator, integers=integers),
        "kv_scales": drawn_scales(keys, spec.head_dim, generator, exponents),
        "weights": drawn_weights(tokens, spec.heads, generator, integers=integers),
        "ks": torch.tensor(starts, dtype=torch.int32),
        "ke": torch.tensor(ends, dtype=torch.int32),
    }
    if spec.clean:
        given["columns"] = room
    else:
        given["out"] = torch.full((tokens, room), 7.0, dtype=torch.bfloat16)
    return given


def check(spec: MqaLogitsSpec, cores: int, given: dict[str, Any], compare: Comparison) -> torch.Tensor:
    sizes = {"columns": given["columns"]} if spec.clean else None
    return check_kernel(spec, cores, given, compare, sizes=sizes)["out"]


def check_once(spec: MqaLogitsSpec, given: dict[str, Any], compare: Comparison) -> torch.Tensor:
    """In eager order only."""
    sizes = {"columns": given["columns"]} if spec.clean else None
    built = kernel(spec, CORES)
    return run_once(built, spec, given, reference_of(spec, given), compare, sizes=sizes)["out"]


@pytest.mark.parametrize(
    ("fields", "tokens", "keys", "windows"),
    [
        ({"heads": 64}, 11, 1900, causal),
        ({"heads": 32, "head_dim": 64, "dtype": "e2m1"}, 37, 1333, sliding),
    ],
    ids=str,
)
def test_scores_agree_in_every_schedule(
    fields: dict[str, Any], tokens: int, keys: int, windows: Windows
) -> None:
    spec = MqaLogitsSpec(**fields)
    check(spec, CORES, inputs(spec, tokens, keys, windows, integers=True), EXACT)
    check_once(spec, inputs(spec, tokens, keys, windows, integers=False), RANDOM)
