"""The twin's happens-before check: accesses that nothing orders are named, ordered ones pass."""

from __future__ import annotations

import numpy as np
import pytest
from support.twin_launch import templates_dir
from support.twin_toolkit import REPORTING, Twin, happens_before

from kaas.compiler.twin.install import ensure_twin_home
from kaas.proto.errors import DeviceError

BYTES = 256
VECTOR_KERNEL = """
#include <tl_templates/ascend/common.h>
#include <tl_templates/ascend/simd_inst.h>
__simd_vf__ inline void under_test(__ubuf__ uint8_t* ub) {{
  vector_bool all = asc_create_mask_b32(PAT_ALL);
  __ubuf__ float* at = (__ubuf__ float*)ub;
  vector_f32 one = simd_inst::vdup<float>(1.0f, all, MODE_ZEROING);
  vector_f32 two = simd_inst::vdup<float>(2.0f, all, MODE_ZEROING);
  {body}
}}
extern "C" __global__ __vector__ void kernel_under_test(__gm__ float* target) {{
  asc_init();
  __ubuf__ uint8_t* ub = (__ubuf__ uint8_t*)0;
  under_test(ub);
  {between}
  auto cached = static_cast<asc_store_l2_cache_mode>(0);
  asc_copy_ub2gm_align((__gm__ uint8_t*)target, ub, 1, 256, cached, 256, 256);
}}
"""
ORDERED = """
  asc_sync_notify(PIPE_V, PIPE_MTE3, static_cast<event_t>(0));
  asc_sync_wait(PIPE_V, PIPE_MTE3, static_cast<event_t>(0));
"""
STORE_ONE = "simd_inst::vsts_norm(one, at, 0, all);"
STORE_TWO = "simd_inst::vsts_norm(two, at, 0, all);"
STORE_ELSEWHERE = "simd_inst::vsts_norm(two, at + 64, 0, all);"
LOAD = "two = simd_inst::vlds_norm<float>(at, 0);"


@pytest.fixture(scope="module")
def twin() -> Twin:
    return Twin(ensure_twin_home())


def launched(twin: Twin, body: str, between: str = ORDERED) -> np.ndarray:
    source = VECTOR_KERNEL.format(body=body, between=between)
    image = twin.compile(source, flags=[f"-I{templates_dir()}"], environment=REPORTING)
    target = np.zeros(BYTES // 4, dtype=np.float32)
    with happens_before():
        twin.run(image, 1, target)
    return target


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (STORE_ONE + STORE_ELSEWHERE, 1),
        (STORE_ONE + "simd_inst::mem_bar(VST_VLD);" + LOAD + STORE_ELSEWHERE, 1),
        (STORE_ONE + "simd_inst::mem_bar(VV_ALL);" + LOAD + STORE_TWO, 1),
        (STORE_ONE + "simd_inst::mem_bar(VST_VLD);" + STORE_TWO, 2),
    ],
)
def test_accesses_of_a_vector_function_with_barriers_between_pass(twin: Twin, body: str, value: int) -> None:
    assert (launched(twin, body) == value).all()


@pytest.mark.parametrize("barrier", ["", "simd_inst::mem_bar(VST_VST);", "simd_inst::mem_bar(VLD_VST);"])
def test_a_load_of_what_its_vector_function_stored_without_the_right_barrier_is_a_race(
    twin: Twin, barrier: str
) -> None:
    with pytest.raises(DeviceError, match=r"race \(RAW\).*earlier in the same vector function"):
        launched(twin, STORE_ONE + barrier + LOAD)


def test_a_missing_pair_of_flags_is_a_race_that_names_both_accesses(twin: Twin) -> None:
    with pytest.raises(DeviceError) as caught:
        launched(twin, STORE_ONE, between="")
    text = str(caught.value)
    for part in (
        "race (RAW)",
        "PIPE_MTE3",
        "UB of AIV0 at offset 0",
        "PIPE_V, ",
        "under_test",
        "no flag, lock",
    ):
        assert part in text


def test_blocks_that_store_to_the_same_bytes_are_a_race(twin: Twin) -> None:
    source = VECTOR_KERNEL.format(body=STORE_ONE, between=ORDERED)
    image = twin.compile(source, flags=[f"-I{templates_dir()}"], environment=REPORTING)
    target = np.zeros(BYTES // 4, dtype=np.float32)
    with (
        happens_before(),
        pytest.raises(DeviceError, match=r"block 1, AIV0, PIPE_MTE3.*race \(WAW\).*GM.*block 0"),
    ):
        twin.run(image, 2, target)


def test_an_image_that_does_not_report_its_accesses_is_refused(twin: Twin) -> None:
    source = VECTOR_KERNEL.format(body=STORE_ONE, between=ORDERED)
    image = twin.compile(source, flags=[f"-I{templates_dir()}"])
    with happens_before(), pytest.raises(DeviceError, match="KAAS_TWIN_REPORT_ACCESSES=1"):
        twin.run(image, 1, np.zeros(BYTES // 4, dtype=np.float32))
