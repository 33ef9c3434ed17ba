"""mqa_logits on the CPU twin against scores in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.indexer_inputs import drawn_scales, window_inputs
from support.kernel_checks import (
    EQUAL,
    EXACT,
    CalcDiff,
    Comparison,
    check_kernel,
    compare_output,
    reference_of,
    run_once,
)
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
    starts, ends = windows(tokens, keys)
    return window_inputs(spec, keys, starts, ends, integers=integers, columns=columns, seed=seed)


def check(spec: MqaLogitsSpec, cores: int, given: dict[str, Any], compare: Comparison) -> torch.Tensor:
    sizes = {"columns": given["columns"]} if spec.clean else None
    return check_kernel(spec, cores, given, compare, sizes=sizes)["out"]


def check_once(spec: MqaLogitsSpec, given: dict[str, Any], compare: Comparison) -> torch.Tensor:
    """In eager order only."""
    sizes = {"columns": given["columns"]} if spec.clean else None
    built = kernel(spec, CORES)
    return run_once(built, spec, given, reference_of(spec, given), compare, sizes=sizes)["out"]


ALL_WINDOWS = (causal, sliding, sequences, empty_and_single, outside)
SHAPES: tuple[tuple[dict[str, Any], int, int], ...] = (
    ({"heads": 64}, 11, 1900),
    ({"heads": 32, "head_dim": 64, "dtype": "e2m1"}, 37, 1333),
    ({"heads": 4, "clean": True}, 150, 1111),
)
MORE_SHAPES: tuple[tuple[dict[str, Any], int, int], ...] = (
    ({"heads": 12, "dtype": "e2m1", "clean": True}, 57, 1300),
    ({"heads": 36, "head_dim": 64}, 13, 700),
    ({"heads": 4, "head_dim": 64, "dtype": "e2m1"}, 200, 900),
    ({"heads": 64, "tokens": 21, "keys": 777, "columns": 512, "clean": True}, 21, 777),
)


def columns_of(spec: MqaLogitsSpec) -> int | None:
    return None if spec.columns == "dynamic" else spec.columns


@pytest.mark.parametrize(
    ("shape", "windows"),
    [
        pytest.param(SHAPES[0], causal, id="64 heads, causal"),
        pytest.param(SHAPES[1], sliding, id="32 heads of e2m1, sliding"),
        pytest.param(SHAPES[2], sequences, id="4 heads, three sequences, clean", marks=pytest.mark.slow),
        pytest.param(MORE_SHAPES[0], sliding, id="12 heads of e2m1, sliding, clean", marks=pytest.mark.slow),
        pytest.param(MORE_SHAPES[3], outside, id="constant extents", marks=pytest.mark.slow),
    ],
)
def test_scores_agree_in_every_schedule(shape: tuple[dict[str, Any], int, int], windows: Windows) -> None:
    fields, tokens, keys = shape
    spec = MqaLogitsSpec(**fields)
    given = inputs(spec, tokens, keys, windows, integers=True, columns=columns_of(spec))
    check(spec, CORES, given, EXACT)


@pytest.mark.parametrize("windows", ALL_WINDOWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_integers_agree_to_the_last_bit(shape: tuple[dict[str, Any], int, int], windows: Windows) -> None:
    fields, tokens, keys = shape
    spec = MqaLogitsSpec(**fields)
    check_once(spec, inputs(spec, tokens, keys, windows, integers=True), EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("windows", ALL_WINDOWS)
@pytest.mark.parametrize("shape", MORE_SHAPES, ids=str)
def test_integers_of_more_shapes_agree(shape: tuple[dict[str, Any], int, int], windows: Windows) -> None:
    fields, tokens, keys = shape
    spec = MqaLogitsSpec(**fields)
    given = inputs(spec, tokens, keys, windows, integers=True, columns=columns_of(spec))
    check_once(spec, given, EXACT)


@pytest.mark.parametrize("fields", [SHAPES[0][0], SHAPES[1][0]], ids=str)
@pytest.mark.parametrize("windows", [causal, sliding])
def test_random_scores_agree_within_the_tolerance(fields: dict[str, Any], windows: Windows) -> None:
    spec = MqaLogitsSpec(**fields)
    given = inputs(spec, 19, 1500, windows, integers=False)
    given["out"].zero_()
    check_once(spec, given, RANDOM)


def test_one_query_with_one_key() -> None:
    spec = MqaLogitsSpec(heads=64)
    given = inputs(spec, 1, 1, lambda tokens, keys: ([0], [1]), integers=True)
    assert check_once(spec, given, EXACT).shape == (1, 1)


def test_rows_shorter_than_their_windows_are_cut_off() -> None:
    spec = MqaLogitsSpec(heads=64)
    check_once(spec, inputs(spec, 11, 1900, sliding, integers=True, columns=77), EXACT)


def test_clean_rows_longer_than_all_keys_end_in_minus_infinity() -> None:
    spec = MqaLogitsSpec(heads=4, clean=True)
    out = check_once(spec, inputs(spec, 3, 40, causal, integers=True, columns=5000), EXACT)
    assert bool((out[:, 40:] == -torch.inf).all())


def test_negative_weights_and_scores_below_zero() -> None:
    spec = MqaLogitsSpec(heads=64)
    given = inputs(spec, 5, 300, causal, integers=True)
    given["weights"].fill_(-1)
    out = check_once(spec, given, EXACT)
    assert bool((out[4, :300] <= 0).all())


@pytest.mark.parametrize(("q_scale", "kv_scale"), [(254, 0), (0, 254), (0, 0), (254, 254)])
def test_extreme_scales_agree(q_scale: int, kv_scale: int) -> None:
    spec = MqaLogitsSpec(heads=64)
    given = inputs(spec, 3, 300, causal, integers=True)
    generator = torch.Generator().manual_seed(2)
    given["q_scales"] = drawn_scales(3 * 64, 128, generator, (q_scale, q_scale))
    given["kv_scales"] = drawn_scales(300, 128, generator, (kv_scale, kv_scale))
    # No zeros among the weights and no two signs: infinities are neither multiplied by 0 nor cancelled.
    given["weights"] = given["weights"].abs() + 1
    for name in ("q", "kv"):
        given[name] = given[name].float().abs().to(torch.float8_e4m3fn)
    expected = {"out": reference_of(spec, given)["out"].bfloat16().double()}
    run_once(kernel(spec, CORES), spec, given, expected, EQUAL)


def test_a_key_whose_scale_is_no_number_spoils_its_own_column_only() -> None:
    spec = MqaLogitsSpec(heads=64)
    given = inputs(spec, 4, 300, lambda tokens, keys: ([0] * 4, [300] * 4), integers=True)
    given["kv_scales"][1, 123] = -1
    out = check_once(spec, given, EXACT)
    assert out.isnan().sum(0).tolist() == [4 if key == 123 else 0 for key in range(300)]


def test_no_keys_at_all_are_nothing_but_minus_infinity() -> None:
    spec = MqaLogitsSpec(heads=4, clean=True)
    given = inputs(spec, 3, 1, lambda tokens, keys: ([0] * 3, [1] * 3), integers=True, columns=9)
    given["kv"], given["kv_scales"] = given["kv"][:0], given["kv_scales"][:, :0]
    expected = {"out": torch.full((3, 9), -torch.inf)}
    run_once(kernel(spec, CORES), spec, given, expected, EXACT, sizes={"columns": 9})


def test_windows_without_keys_leave_everything_as_it_was() -> None:
    spec = MqaLogitsSpec(heads=64)
    given = inputs(spec, 9, 50, lambda tokens, keys: ([3] * 9, [3] * 9), integers=True, columns=20)
    assert bool((check_once(spec, given, EXACT) == 7).all())


@pytest.mark.parametrize("tokens", [pytest.param(3, id="few queries"), pytest.param(300, id="many queries")])
@pytest.mark.slow
def test_scores_do_not_depend_on_the_core_count(tokens: int) -> None:
    spec = MqaLogitsSpec(heads=32, head_dim=64, dtype="e2m1")
    given = inputs(spec, tokens, 1333, sliding, integers=False)
    given["out"].zero_()
    results = []
    for cores in (4, 8, 28, 32, 36):
        built = kernel(spec, cores)
        results.append(run_once(built, spec, given, reference_of(spec, given), RANDOM)["out"])
    for other in results[1:]:
        compare_output("out", other, results[0], EXACT)
