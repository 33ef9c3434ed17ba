"""paged_mqa_logits on the CPU twin against scores in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.indexer_inputs import drawn_scales
from support.indexer_pages import paged_inputs, plan
from support.kernel_checks import (
    EXACT,
    CalcDiff,
    Comparison,
    check_kernel,
    compare_output,
    reference_of,
    run_once,
)
from support.twin_kernels import kernel

from kaas.kernel_library.families.paged_mqa_logits import PagedMqaLogitsSpec
from kaas.kernel_library.families.paged_mqa_metadata import PagedMqaMetadataSpec

CORES = 4
RANDOM = CalcDiff(5e-4)


def check(spec: PagedMqaLogitsSpec, given: dict[str, Any], compare: Comparison) -> torch.Tensor:
    sizes = {"columns": given["columns"]} if spec.clean else None
    return check_kernel(spec, CORES, given, compare, sizes=sizes)["out"]


def check_once(spec: PagedMqaLogitsSpec, given: dict[str, Any], compare: Comparison) -> torch.Tensor:
    """In eager order only."""
    sizes = {"columns": given["columns"]} if spec.clean else None
    built = kernel(spec, CORES)
    return run_once(built, spec, given, reference_of(spec, given), compare, sizes=sizes)["out"]


Case = tuple[dict[str, Any], list[int], list[int]]

ROWS: dict[str, Any] = {"heads": 64}
TILES: dict[str, Any] = {"heads": 32, "head_dim": 64, "dtype": "e2m1", "layout": "tiles", "page_size": 128}
PAIRS: dict[str, Any] = {"heads": 64, "layout": "tiles", "next_n": 2, "clean": True}
MORE: tuple[dict[str, Any], ...] = (
    {"heads": 4, "dtype": "e2m1"},
    {"heads": 64, "dtype": "e2m1", "layout": "tiles"},
    {"heads": 12, "head_dim": 64, "page_size": 128, "clean": True},
    {"heads": 64, "head_dim": 64, "layout": "tiles"},
    {"heads": 16, "head_dim": 64, "dtype": "e2m1", "page_size": 64},
    {"heads": 36, "layout": "tiles", "page_size": 128},
)
EDGES = [0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513]
"""Lengths around the ends of pages, steps and splits."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param((ROWS, [1, 3, 2], [1700, 515, 1100]), id="64 heads, rows"),
        pytest.param(
            (TILES, [2, 1, 5], [900, 0, 1300]), id="32 heads of e2m1, tiles", marks=pytest.mark.slow
        ),
        pytest.param(
            (PAIRS, [2, 2, 2], [1500, 1, 700]), id="two queries each, clean", marks=pytest.mark.slow
        ),
    ],
)
def test_scores_agree_in_every_schedule(case: Case) -> None:
    fields, sizes, lengths = case
    spec = PagedMqaLogitsSpec(**fields)
    check(spec, paged_inputs(spec, sizes, lengths, integers=True), EXACT)


@pytest.mark.parametrize("fields", [ROWS, TILES, PAIRS], ids=str)
def test_lengths_around_the_ends_of_pages_agree(fields: dict[str, Any]) -> None:
    spec = PagedMqaLogitsSpec(**fields)
    sizes = [spec.next_n or 1 + one % 3 for one in range(len(EDGES))]
    check_once(spec, paged_inputs(spec, sizes, EDGES, integers=True), EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("fields", MORE, ids=str)
def test_integers_of_more_shapes_agree(fields: dict[str, Any]) -> None:
    spec = PagedMqaLogitsSpec(**fields)
    sizes = [1 + 2 * one % 5 for one in range(len(EDGES))]
    check_once(spec, paged_inputs(spec, sizes, EDGES, integers=True), EXACT)


@pytest.mark.parametrize("fields", [ROWS, TILES], ids=str)
def test_random_scores_agree_within_the_tolerance(fields: dict[str, Any]) -> None:
    spec = PagedMqaLogitsSpec(**fields)
    given = paged_inputs(spec, [3, 1, 4], [1000, 600, 1400], integers=False)
    given["out"].zero_()
    check_once(spec, given, RANDOM)


@pytest.mark.parametrize("parts", [1, 2, 7, 64])
def test_plans_of_any_number_of_parts_give_the_same(parts: int) -> None:
    spec = PagedMqaLogitsSpec(**ROWS)
    given = paged_inputs(spec, [1, 3, 2], [1700, 515, 1100], integers=True, boundaries=parts + 1)
    check_once(spec, given, EXACT)


def test_requests_with_more_queries_than_a_block_holds() -> None:
    spec = PagedMqaLogitsSpec(**ROWS)
    check_once(spec, paged_inputs(spec, [19, 2], [700, 300], integers=True), EXACT)


def test_neighbours_with_equal_indices_share_the_table_row_of_the_first() -> None:
    spec = PagedMqaLogitsSpec(**ROWS)
    given = paged_inputs(spec, [3, 2], [300, 200], integers=True)
    for row in (1, 2, 4):
        given["block_table"][row] = 10**6
    check_once(spec, given, EXACT)


def test_page_numbers_outside_of_the_cache_are_moved_inside() -> None:
    spec = PagedMqaLogitsSpec(**ROWS)
    given = paged_inputs(spec, [1, 1], [300, 200], integers=True)
    given["block_table"][0, 1] = 10**6
    given["block_table"][1, 0] = -5
    check_once(spec, given, EXACT)


def test_lengths_outside_of_the_table_are_cut_off() -> None:
    spec = PagedMqaLogitsSpec(**ROWS)
    given = paged_inputs(spec, [1, 1, 1], [300, 200, 100], integers=True, columns=400)
    given["context_lens"] = torch.tensor([300, 10**6, -7], dtype=torch.int32)
    given["metadata"] = plan(spec, given, 9)
    check_once(spec, given, EXACT)


def test_rows_shorter_than_their_requests_are_cut_off() -> None:
    spec = PagedMqaLogitsSpec(**ROWS)
    check_once(spec, paged_inputs(spec, [1, 2], [300, 700], integers=True, columns=133), EXACT)


@pytest.mark.parametrize("lengths", [[0, 0, 0], [0, 900, 0]], ids=str)
def test_clean_rows_of_requests_without_keys_are_minus_infinity(lengths: list[int]) -> None:
    spec = PagedMqaLogitsSpec(**PAIRS)
    given = paged_inputs(spec, [2, 2, 2], lengths, integers=True, columns=2500)
    out = check_once(spec, given, EXACT)
    assert bool((out[4:] == -torch.inf).all())


def test_no_keys_anywhere_leave_everything_as_it_was() -> None:
    spec = PagedMqaLogitsSpec(**ROWS)
    given = paged_inputs(spec, [1, 2], [0, 0], integers=True, columns=20)
    assert bool((check_once(spec, given, EXACT) == 7).all())


@pytest.mark.parametrize(("q_scale", "kv_scale"), [(254, 0), (0, 254)])
def test_extreme_scales_agree(q_scale: int, kv_scale: int) -> None:
    spec = PagedMqaLogitsSpec(**ROWS)
    given = paged_inputs(spec, [2], [300], integers=True)
    generator = torch.Generator().manual_seed(2)
    given["q_scales"] = drawn_scales(2 * 64, 128, generator, (q_scale, q_scale))
    flat = given["kv_cache"].view(given["kv_cache"].shape[0], -1)
    flat[:, spec.page_size * 128 :] = kv_scale
    check_once(spec, given, EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [ROWS, TILES], ids=str)
def test_scores_do_not_depend_on_the_core_count(fields: dict[str, Any]) -> None:
    spec = PagedMqaLogitsSpec(**fields)
    results = []
    for cores in (4, 8, 28, 32, 36):
        given = paged_inputs(spec, [3, 1, 4], [3000, 600, 1400], integers=False, boundaries=cores + 1)
        given["out"].zero_()
        built = kernel(spec, cores)
        results.append(run_once(built, spec, given, reference_of(spec, given), RANDOM)["out"])
    for other in results[1:]:
        compare_output("out", other, results[0], EXACT)


def test_a_plan_made_on_the_device_is_the_one_that_the_reference_makes() -> None:
    spec = PagedMqaLogitsSpec(**ROWS)
    given = paged_inputs(spec, [1, 3, 2, 6], [1700, 515, 1100, 2600], integers=True)
    planned = PagedMqaMetadataSpec(heads=spec.heads)
    lengths = {name: given[name] for name in ("context_lens", "indices")}
    expected = {"metadata": given["metadata"]}
    built = kernel(planned, CORES)
    made = run_once(built, planned, lengths, expected, EXACT, sizes={"boundaries": 9})
    check_once(spec, given | made, EXACT)
