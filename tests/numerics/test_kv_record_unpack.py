"""kv_record_unpack on the CPU twin: bit-exact against its reference, in every schedule."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import EXACT, check_kernel
from support.record_values import random_records, wide_rows

from kaas.kernel_library.attention.kv_records import RECORD_BYTES
from kaas.kernel_library.families.kv_record_unpack import KvRecordUnpackSpec
from kaas.kernel_library.references.kv_records import pack_records
from kaas.kernel_library.vector.row_plan import RowTile

ROWS = RowTile(rows=2, stages=2)
SPECS = [KvRecordUnpackSpec(fmt="fp8", tile=ROWS), KvRecordUnpackSpec(fmt="fp4", tile=ROWS)]


def name(spec: KvRecordUnpackSpec) -> str:
    return spec.fmt


@pytest.mark.parametrize("spec", SPECS, ids=name)
@pytest.mark.parametrize("tokens", [1, 81])
def test_any_bytes(spec: KvRecordUnpackSpec, tokens: int) -> None:
    check_kernel(spec, 4, {"records": random_records(tokens, RECORD_BYTES[spec.fmt], tokens)})


@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_rows_come_back_within_their_rounding(spec: KvRecordUnpackSpec) -> None:
    x = (torch.randn((9, 512), generator=torch.Generator().manual_seed(2))).bfloat16()
    out = check_kernel(spec, 4, {"records": pack_records(x, spec.fmt)})["x"]
    block, step = (32, 2.0**-4) if spec.fmt == "fp8" else (16, 2.0**-2)
    largest = x.float().view(9, -1, block).abs().amax(2).repeat_interleave(block, 1)
    assert ((out.float() - x.float()).abs() <= largest * step).all()


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 1, 127, 254, 255])
def test_fp8_scales_at_their_ends(code: int) -> None:
    records = pack_records(wide_rows(5, code), "fp8")
    records[:, 512:] = code
    out = check_kernel(SPECS[0], 4, {"records": records})["x"]
    assert bool(out.isnan().all()) == (code == 255)


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 1, 0x7E, 0x7F, 0x80, 0xFE])
def test_fp4_scales_at_their_ends(code: int) -> None:
    records = pack_records(wide_rows(5, code), "fp4")
    records[:, 256:] = code
    out = check_kernel(SPECS[1], 4, {"records": records})["x"]
    assert bool(out.isnan().all()) == (code == 0x7F)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [KvRecordUnpackSpec(fmt=one.fmt) for one in SPECS], ids=name)
def test_the_same_on_every_part(spec: KvRecordUnpackSpec) -> None:
    check_on_every_part(spec, {"records": random_records(333, RECORD_BYTES[spec.fmt], 5)}, EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["fp8", "fp4"])
def test_a_constant_number_of_tokens(fmt: str) -> None:
    records = random_records(19, RECORD_BYTES[fmt], 9)
    check_kernel(KvRecordUnpackSpec(fmt=fmt, tokens=19), 4, {"records": records})
