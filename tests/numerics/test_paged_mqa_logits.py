"""paged_mqa_logits on the CPU twin against scores in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.core_counts import check_on_every_part
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


@pytest.mark.parametrize(
    ("fields", "sizes", "lengths"),
    [
        ({}, [1, 3, 2], [1700, 515, 1100]),
        ({"heads": 32, "head_dim": 64, "dtype": "e2m1", "layout": "tiles"}, [2, 1, 5], [900, 0, 1300]),
        ({"page_size": 128, "layout": "tiles"}, [2, 1, 5], [900, 0, 1300]),
        ({"dtype": "e2m1", "page_size": 128}, [2, 1, 5], [900, 0, 1300]),
        ({"head_dim": 64, "page_size": 128, "next_n": 2, "clean": True}, [2, 2, 2], [900, 0, 1300]),
    ],
    ids=str,
)
def test_scores_agree_in_every_schedule(fields: dict[str, Any], sizes: list[int], lengths: list[int]) -> None:
    spec = PagedMqaLogitsSpec(**fields)
    check(spec, paged_inputs(spec, sizes, lengths, integers=True), EXACT)
    if not spec.clean:
        check_once(spec, paged_inputs(spec, sizes, lengths, integers=False), RANDOM)
