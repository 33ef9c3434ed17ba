"""kv_record_pack on the CPU twin: bit-exact against its reference, in every schedule."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import EXACT, check_kernel
from support.record_values import wide_rows

from kaas.kernel_library.families.kv_record_pack import KvRecordPackSpec
from kaas.kernel_library.references.kv_records import unpack_records
from kaas.kernel_library.vector.row_plan import RowTile

ROWS = RowTile(rows=2, stages=2)
SPECS = [KvRecordPackSpec(fmt="fp8", tile=ROWS), KvRecordPackSpec(fmt="fp4", tile=ROWS)]


def name(spec: KvRecordPackSpec) -> str:
    return spec.fmt


@pytest.mark.parametrize("spec", SPECS, ids=name)
@pytest.mark.parametrize("tokens", [1, 81])
def test_records_of_rows(spec: KvRecordPackSpec, tokens: int) -> None:
    check_kernel(spec, 4, {"x": wide_rows(tokens, tokens)})


@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_blocks_that_are_not_finite_read_as_nan(spec: KvRecordPackSpec) -> None:
    x = wide_rows(4, 1)
    x[0, 40], x[1, 500], x[2, 0] = torch.inf, torch.nan, -torch.inf
    records = check_kernel(spec, 4, {"x": x})["records"]
    values = unpack_records(records, spec.fmt)
    block = 32 if spec.fmt == "fp8" else 16
    assert int(values.isnan().sum()) == 3 * block
    assert values[1, 512 - block :].isnan().all()


@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_zeros_largest_and_smallest_numbers(spec: KvRecordPackSpec) -> None:
    largest, tiny = torch.finfo(torch.bfloat16).max, 2.0**-133
    x = torch.tensor([0.0, -0.0, largest, -largest, tiny, -tiny, 448.0, 2688.0]).bfloat16()
    check_kernel(spec, 4, {"x": x[:, None].expand(8, 512).contiguous()})


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_magnitudes_around_powers_of_two(spec: KvRecordPackSpec) -> None:
    """The largest magnitude of each block is next to where its scale changes."""
    steps = torch.arange(-40, 40)
    largest = 448.0 if spec.fmt == "fp8" else 6.0
    exact = largest * torch.ldexp(torch.ones(80), steps // 2)
    around = torch.stack([exact * factor for factor in (1 - 2**-8, 1.0, 1 + 2**-7)]).flatten()
    x = (
        around.bfloat16()[:, None]
        * torch.rand((240, 512), generator=torch.Generator().manual_seed(3)).bfloat16()
    )
    x[:, ::16] = around.bfloat16()[:, None]
    check_kernel(spec, 4, {"x": x.bfloat16()})


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_values_on_ties(spec: KvRecordPackSpec) -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]).repeat(64)
    x = torch.stack((ties, -ties, ties * 448 / 6, ties + 2**-6)).bfloat16()
    check_kernel(spec, 4, {"x": x})


@pytest.mark.slow
@pytest.mark.parametrize("spec", [KvRecordPackSpec(fmt=one.fmt) for one in SPECS], ids=name)
def test_the_same_on_every_part(spec: KvRecordPackSpec) -> None:
    check_on_every_part(spec, {"x": wide_rows(333, 5)}, EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["fp8", "fp4"])
def test_a_constant_number_of_tokens(fmt: str) -> None:
    check_kernel(KvRecordPackSpec(fmt=fmt, tokens=19), 4, {"x": wide_rows(19, 9)})
