"""paged_mqa_metadata on the CPU twin against a list of all splits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import EXACT, check_kernel, reference_of, run_once
from support.twin_kernels import kernel

from kaas.kernel_library.families.paged_mqa_metadata import PagedMqaMetadataSpec

CORES = 4


def grouped(sizes: list[int], lengths: list[int]) -> dict[str, Any]:
    """Requests of ``sizes`` queries; the first one of each looks at ``lengths`` keys, the next at one more."""
    indices = [request * 3 for request, size in enumerate(sizes) for _ in range(size)]
    each = [length + one for length, size in zip(lengths, sizes, strict=True) for one in range(size)]
    return {
        "indices": torch.tensor(indices, dtype=torch.int32),
        "context_lens": torch.tensor(each, dtype=torch.int32),
    }


def drawn(requests: int, most_queries: int, most_keys: int, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, most_queries + 1, (requests,), generator=generator).tolist()
    lengths = torch.randint(0, most_keys + 1, (requests,), generator=generator).tolist()
    return grouped(sizes, lengths)


def check_once(spec: PagedMqaMetadataSpec, given: dict[str, Any], boundaries: int) -> torch.Tensor:
    """In eager order only."""
    expected = reference_of(spec, given | {"boundaries": boundaries})
    built = kernel(spec, CORES)
    return run_once(built, spec, given, expected, EXACT, sizes={"boundaries": boundaries})["metadata"]


def test_boundaries_agree_in_every_schedule() -> None:
    spec = PagedMqaMetadataSpec()
    given = drawn(400, 3, 9000, 1)
    expected = reference_of(spec, given | {"boundaries": 33})
    check_kernel(spec, CORES, given, EXACT, sizes={"boundaries": 33}, expected=expected)
