"""paged_mqa_metadata on the CPU twin against a list of all splits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import EXACT, check_kernel, reference_of, run_once
from support.twin_kernels import kernel

from kaas.kernel_library.families.paged_mqa_metadata import PagedMqaMetadataSpec

CORES = 4


def grouped(sizes: list[int], lengths: list[int]) -> dict[str, Any]:
    """Requests of ``sizes`` queries; the first of each looks at ``lengths`` keys, the next at one more."""
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


@pytest.mark.parametrize("boundaries", [33, 2])
def test_boundaries_agree_in_every_schedule(boundaries: int) -> None:
    spec = PagedMqaMetadataSpec()
    given = drawn(400, 3, 9000, 1)
    expected = reference_of(spec, given | {"boundaries": boundaries})
    check_kernel(spec, CORES, given, EXACT, sizes={"boundaries": boundaries}, expected=expected)


@pytest.mark.parametrize("boundaries", [2, 9, 29, 33, 37, 300])
@pytest.mark.parametrize("heads", [64, 4])
def test_any_number_of_parts(heads: int, boundaries: int) -> None:
    check_once(PagedMqaMetadataSpec(heads=heads), drawn(37, 40, 3000, 2), boundaries)


@pytest.mark.parametrize("requests", [1, 2, 255, 256, 257, 1500])
def test_any_number_of_requests(requests: int) -> None:
    check_once(PagedMqaMetadataSpec(), drawn(requests, 2, 20000, 3), 33)


@pytest.mark.parametrize("next_n", [1, 3])
def test_requests_of_equal_size(next_n: int) -> None:
    spec = PagedMqaMetadataSpec(next_n=next_n)
    lengths = torch.randint(0, 5000, (201,), generator=torch.Generator().manual_seed(4)).int()
    check_once(spec, {"context_lens": lengths}, 33)


@pytest.mark.parametrize("lengths", [[0, 0, 0], [0, 0, 7], [7, 0, 0], [-3, 512, 513], [2**20, 1, 0]], ids=str)
def test_requests_without_keys_and_with_many(lengths: list[int]) -> None:
    check_once(PagedMqaMetadataSpec(), grouped([1, 1, 1], lengths), 9)


def test_a_request_longer_than_a_threads_share_of_queries() -> None:
    check_once(PagedMqaMetadataSpec(), grouped([900, 3, 700], [5000, 100000, 1]), 33)


def test_indices_may_come_back_for_another_request() -> None:
    given = grouped([2, 2, 2], [1000, 2000, 3000])
    given["indices"] = torch.tensor([8, 8, -1, -1, 8, 8], dtype=torch.int32)
    check_once(PagedMqaMetadataSpec(), given, 9)


def test_all_parts_together_cover_every_split_once() -> None:
    given = drawn(50, 3, 6000, 5)
    found = check_once(PagedMqaMetadataSpec(), given, 29).tolist()
    assert found[0] == [0, 0]
    assert found[-1] == [len(given["indices"]), 0]
    assert found == sorted(found)


def test_boundaries_do_not_depend_on_the_part() -> None:
    spec = PagedMqaMetadataSpec(boundaries=33)
    given = drawn(80, 3, 6000, 6)
    expected = reference_of(spec, given | {"boundaries": 33})
    for cores in (4, 28, 32, 36):
        run_once(kernel(spec, cores), spec, given, expected, EXACT)
