"""SIMT functions of the CPU twin: threads, barriers, warp functions, TileLang's reducers, atomics."""

# ruff: noqa: E501 (device code keeps its lines)

from __future__ import annotations

import numpy as np
import pytest
from support.twin_launch import Twin, TwinFailure, TwinKernels
from support.twin_toolkit import schedule

from kaas.compiler.twin.install import ensure_twin_home

# (element type, reducer, threads that share a reduction, stride of the participants)
REDUCERS = [
    ("float", "SumOp", 256, 1),
    ("float", "MaxOp", 1024, 1),
    ("float", "MinOp", 32, 1),
    ("float", "SumOp", 16, 1),
    ("float", "SumOp", 8, 2),
    ("float", "SumOp", 256, 4),
    ("float", "SumOp", 96, 1),
    ("int32_t", "MaxOp", 128, 1),
    ("int32_t", "SumOp", 16, 4),
    ("uint32_t", "MinOp", 64, 1),
    ("int64_t", "SumOp", 16, 1),
    ("half", "MaxOp", 64, 1),
]


def reducer_name(element: str, reducer: str, threads: int, scale: int) -> str:
    return f"reduce_{element}_{reducer}_{threads}_{scale}"


def reducer_kernel(element: str, reducer: str, threads: int, scale: int) -> str:
    name = reducer_name(element, reducer, threads, scale)
    total = max(threads, 64) if 64 % threads == 0 else threads
    return f"""
__simt_vf__ __launch_bounds__({total}) inline void {name}_vf(__gm__ {element}* X, __gm__ {element}* Y, __ubuf__ {element}* buffer) {{
  Y[threadIdx.x] = tl::AscendAllReduce<tl::{reducer}, {threads}, {scale}, 0>::run(X[threadIdx.x], buffer);
}}
extern "C" __global__ __vector__ void {name}(__gm__ {element}* X, __gm__ {element}* Y) {{
  asc_init();
  asc_vf_call<{name}_vf>(cce::dim3({total}), X, Y, (__ubuf__ {element}*)0);
}}
"""


SOURCE = """
#include <tl_templates/ascend/common.h>
#include <tl_templates/ascend/philox_rng.h>
#include <simt_api/cooperative_groups.h>

__simt_vf__ __launch_bounds__(2048) inline void coordinates_vf(__gm__ uint32_t* OUT) {
  const uint32_t linear = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  uint32_t* row = OUT + (blockIdx.x * blockDim.x * blockDim.y * blockDim.z + linear) * 5;
  row[0] = threadIdx.x; row[1] = threadIdx.y; row[2] = threadIdx.z; row[3] = laneid(); row[4] = gridDim.x;
}
extern "C" __global__ __vector__ void coordinates(__gm__ uint32_t* OUT) {
  asc_init();
  asc_vf_call<coordinates_vf>(cce::dim3(8, 6, 5), OUT);
}

__simt_vf__ inline void reverse_vf(__ubuf__ float* ub, __gm__ float* OUT, int32_t rounds) {
  const int n = blockDim.x;
  float value = threadIdx.x;
  for (int i = 0; i < rounds; ++i) {
    ub[threadIdx.x] = value;
    asc_syncthreads();
    value = ub[n - 1 - threadIdx.x] + 1.0f;
    asc_syncthreads();
  }
  OUT[threadIdx.x] = value;
}
extern "C" __global__ __vector__ void reverse(__gm__ float* OUT, int32_t threads, int32_t rounds) {
  asc_init();
  asc_vf_call<reverse_vf>(cce::dim3(threads), (__ubuf__ float*)0, OUT, rounds);
}

__simt_vf__ inline void no_barrier_vf(__ubuf__ float* ub, __gm__ float* OUT) {
  ub[threadIdx.x] = threadIdx.x;
  OUT[threadIdx.x] = ub[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ __vector__ void no_barrier(__gm__ float* OUT) {
  asc_init();
  asc_vf_call<no_barrier_vf>(cce::dim3(128), (__ubuf__ float*)0, OUT);
}

__simt_vf__ inline void divergent_vf(__gm__ float* OUT) {
  if (threadIdx.x < 100) asc_syncthreads();
  OUT[threadIdx.x] = 1.0f;
}
extern "C" __global__ __vector__ void divergent(__gm__ float* OUT) {
  asc_init();
  asc_vf_call<divergent_vf>(cce::dim3(128), OUT);
}
extern "C" __global__ __vector__ void too_many_threads(__gm__ float* OUT) {
  asc_init();
  asc_vf_call<no_barrier_vf>(cce::dim3(2049), (__ubuf__ float*)0, OUT);
}
extern "C" __global__ __vector__ void barrier_in_scalar_code(__gm__ float* OUT) {
  asc_init();
  asc_syncthreads();
}

__simt_vf__ inline void bad_width_vf(__gm__ float* OUT) {
  if (threadIdx.x == 40) OUT[0] = asc_shfl(1.0f, 0, 5);
  asc_syncthreads();
}
extern "C" __global__ __vector__ void bad_width(__gm__ float* OUT) {
  asc_init();
  asc_vf_call<bad_width_vf>(cce::dim3(64), OUT);
}
__simt_vf__ inline void beyond_ub_vf(__ubuf__ float* ub, __gm__ float* OUT) {
  asc_syncthreads();
  OUT[threadIdx.x] = ub[64 * 1024 + threadIdx.x];
}
extern "C" __global__ __vector__ void beyond_ub(__gm__ float* OUT) {
  asc_init();
  asc_vf_call<beyond_ub_vf>(cce::dim3(64), (__ubuf__ float*)0, OUT);
}

__simt_vf__ inline void shuffles_vf(__gm__ int32_t* OUT) {
  const int32_t lane = laneid();
  int32_t* row = OUT + threadIdx.x * 6;
  row[0] = asc_shfl(lane, 5, 16);
  row[1] = asc_shfl_up(lane, 2, 16);
  row[2] = asc_shfl_down(lane, 3);
  row[3] = asc_shfl_xor(lane, 9);
  row[4] = asc_ballot(lane % 3 == 0);
  row[5] = (asc_any(lane == 7) << 1) | asc_all(lane < 31);
}
extern "C" __global__ __vector__ void shuffles(__gm__ int32_t* OUT) {
  asc_init();
  asc_vf_call<shuffles_vf>(cce::dim3(64), OUT);
}

__simt_vf__ inline void active_lanes_vf(__gm__ float* OUT, __gm__ uint32_t* MASK) {
  OUT[threadIdx.x] = -1.0f;
  if (threadIdx.x % 4 == 1) {
    OUT[threadIdx.x] = asc_reduce_add(static_cast<float>(threadIdx.x));
    MASK[threadIdx.x] = asc_activemask();
  }
}
extern "C" __global__ __vector__ void active_lanes(__gm__ float* OUT, __gm__ uint32_t* MASK) {
  asc_init();
  asc_vf_call<active_lanes_vf>(cce::dim3(40), OUT, MASK);
}

__simt_vf__ inline void groups_vf(__gm__ uint32_t* OUT) {
  if (threadIdx.x >= 8) {
    auto group = cooperative_groups::coalesced_threads();
    group.sync();
    OUT[threadIdx.x] = group.size() * 100 + group.thread_rank();
  }
}
extern "C" __global__ __vector__ void groups(__gm__ uint32_t* OUT) {
  asc_init();
  asc_vf_call<groups_vf>(cce::dim3(32), OUT);
}

__simt_vf__ inline void atomics_vf(__gm__ int32_t* COUNT, __gm__ float* SUM, __gm__ half* SMALL, __gm__ int32_t* HIGH) {
  asc_atomic_add(COUNT, 1);
  asc_atomic_add(SUM, 0.5f);
  asc_atomic_add(SMALL, half(1.0f));
  asc_atomic_max(HIGH, static_cast<int32_t>(blockIdx.x * 1000 + threadIdx.x));
}
extern "C" __global__ __vector__ void atomics(__gm__ int32_t* COUNT, __gm__ float* SUM, __gm__ half* SMALL, __gm__ int32_t* HIGH) {
  asc_init();
  asc_vf_call<atomics_vf>(cce::dim3(64), COUNT, SUM, SMALL, HIGH);
}

__simt_vf__ inline void mathematics_vf(__gm__ float* X, __gm__ float* OUT) {
  const float x = X[threadIdx.x];
  float* row = OUT + threadIdx.x * 8;
  row[0] = rsqrtf(x); row[1] = sqrtf(x); row[2] = expf(-x); row[3] = logf(x);
  row[4] = fmaxf(x, 1.0f); row[5] = fabsf(-x); row[6] = tanhf(x); row[7] = float(hexp(half(-x)));
}
extern "C" __global__ __vector__ void mathematics(__gm__ float* X, __gm__ float* OUT) {
  asc_init();
  asc_vf_call<mathematics_vf>(cce::dim3(64), X, OUT);
}

__simt_vf__ inline void random_vf(__gm__ float* OUT) {
  tl::AscendPhiloxState state;
  tl::philox_init(&state, 42, threadIdx.x, 0);
  for (int i = 0; i < 16; ++i) OUT[threadIdx.x * 16 + i] = tl::philox_rand_uniform(&state);
}
extern "C" __global__ __vector__ void random_numbers(__gm__ float* OUT) {
  asc_init();
  asc_vf_call<random_vf>(cce::dim3(256), OUT);
}
""" + "".join(reducer_kernel(*case) for case in REDUCERS)


@pytest.fixture(scope="module")
def kernels() -> TwinKernels:
    return Twin(ensure_twin_home()).compile(SOURCE)


@pytest.fixture(params=["eager", "adversarial"], autouse=True)
def any_schedule(request):
    with schedule(request.param, seed=5):
        yield request.param


def test_threads_know_their_coordinates(kernels):
    out = np.zeros((3, 5, 6, 8, 5), np.uint32)
    kernels.launch("coordinates", out, blocks=3)
    z, y, x = np.meshgrid(np.arange(5), np.arange(6), np.arange(8), indexing="ij")
    for block in out:
        np.testing.assert_array_equal(block[..., 0], x)
        np.testing.assert_array_equal(block[..., 1], y)
        np.testing.assert_array_equal(block[..., 2], z)
        np.testing.assert_array_equal(block[..., 3], (x + 8 * (y + 6 * z)) % 32)
        assert (block[..., 4] == 3).all()


@pytest.mark.parametrize("threads", [1, 33, 2048])
def test_barrier_separates_writes_from_reads(kernels, threads):
    out = np.zeros(threads, np.float32)
    rounds = 7
    kernels.launch("reverse", out, threads, rounds)
    expected = np.arange(threads, dtype=np.float32)
    for _ in range(rounds):
        expected = expected[::-1] + 1
    np.testing.assert_array_equal(out, expected)


def test_missing_barrier_shows_as_wrong_numbers(kernels):
    out = np.zeros(128, np.float32)
    kernels.launch("no_barrier", out)
    assert not np.array_equal(out, np.arange(128)[::-1])


def test_barrier_divergence_is_an_error(kernels):
    with pytest.raises(TwinFailure, match=r"barrier divergence.*28 of 128 threads"):
        kernels.launch("divergent", np.zeros(128, np.float32))


@pytest.mark.parametrize(
    ("entry", "text"),
    [("divergent", "divergence"), ("bad_width", "width 5"), ("beyond_ub", "UB")],
)
def test_a_failed_launch_names_its_cause_and_leaves_the_next_one_intact(kernels, entry, text):
    with pytest.raises(TwinFailure, match=text):
        kernels.launch(entry, np.zeros(128, np.float32))
    test_barrier_separates_writes_from_reads(kernels, 33)


def test_more_threads_than_a_block_has_are_refused(kernels):
    with pytest.raises(TwinFailure, match="2049 threads"):
        kernels.launch("too_many_threads", np.zeros(8, np.float32))


def test_barrier_outside_simt_functions_is_refused(kernels):
    with pytest.raises(TwinFailure, match="asc_syncthreads is used outside a SIMT function"):
        kernels.launch("barrier_in_scalar_code", np.zeros(8, np.float32))


def test_shuffles_and_votes(kernels):
    out = np.zeros((64, 6), np.int32)
    kernels.launch("shuffles", out)
    lane = np.arange(64) % 32
    np.testing.assert_array_equal(out[:, 0], lane // 16 * 16 + 5)
    np.testing.assert_array_equal(out[:, 1], np.where(lane % 16 < 2, lane, lane - 2))
    np.testing.assert_array_equal(out[:, 2], np.where(lane + 3 < 32, lane + 3, lane))
    np.testing.assert_array_equal(out[:, 3], lane ^ 9)
    assert (out[:, 4].view(np.uint32) == sum(1 << i for i in range(0, 32, 3))).all()
    assert (out[:, 5] == 2).all()


def test_warp_reduction_covers_active_lanes_only(kernels):
    out, mask = np.zeros(40, np.float32), np.zeros(40, np.uint32)
    kernels.launch("active_lanes", out, mask)
    chosen = np.arange(40) % 4 == 1
    for warp in (slice(0, 32), slice(32, 40)):
        members = np.arange(40)[warp][chosen[warp]]
        assert (out[warp][chosen[warp]] == members.sum()).all()
        assert (mask[warp][chosen[warp]] == sum(1 << int(i % 32) for i in members)).all()
    assert (out[~chosen] == -1).all()


def test_coalesced_group_holds_the_lanes_that_are_together(kernels):
    out = np.zeros(32, np.uint32)
    kernels.launch("groups", out)
    np.testing.assert_array_equal(out[8:], 2400 + np.arange(24))


@pytest.mark.parametrize(("element", "reducer", "threads", "scale"), REDUCERS)
def test_tilelang_reducer(kernels, element, reducer, threads, scale):
    dtype = {
        "float": np.float32,
        "int32_t": np.int32,
        "uint32_t": np.uint32,
        "int64_t": np.int64,
        "half": np.float16,
    }
    total = max(threads, 64) if 64 % threads == 0 else threads
    x = np.random.default_rng(6).integers(0, 1000, total).astype(dtype[element])
    y = np.zeros_like(x)
    kernels.launch(reducer_name(element, reducer, threads, scale), x, y)
    function = {"SumOp": np.sum, "MaxOp": np.max, "MinOp": np.min}[reducer]
    grouped = x.reshape(-1, threads // scale, scale)
    expected = np.broadcast_to(function(grouped, axis=1, keepdims=True), grouped.shape).ravel()
    np.testing.assert_array_equal(y, expected)


def test_atomics_of_all_blocks_add_up(kernels):
    count, high = np.zeros(1, np.int32), np.zeros(1, np.int32)
    total, small = np.zeros(1, np.float32), np.zeros(1, np.float16)
    kernels.launch("atomics", count, total, small, high, blocks=9)
    assert count[0] == 9 * 64
    assert total[0] == 9 * 64 / 2
    assert small[0] == 9 * 64
    assert high[0] == 8063


def test_mathematics_matches_numpy(kernels):
    x = np.linspace(0.1, 6, 64, dtype=np.float32)
    out = np.zeros((64, 8), np.float32)
    kernels.launch("mathematics", x, out)
    exact = x.astype(np.float64)
    columns = [1 / np.sqrt(exact), np.sqrt(exact), np.exp(-exact), np.log(exact)]
    columns += [np.maximum(exact, 1), exact, np.tanh(exact)]
    np.testing.assert_allclose(out[:, :7], np.stack(columns, 1), rtol=3e-7, atol=3e-7)
    np.testing.assert_allclose(out[:, 7], np.exp(-exact), rtol=4e-3)


def test_philox_gives_every_thread_its_own_uniform_numbers(kernels):
    out = np.zeros((256, 16), np.float32)
    kernels.launch("random_numbers", out)
    assert ((out >= 0) & (out < 1)).all()
    assert len(np.unique(out)) > 4000
    assert abs(out.mean() - 0.5) < 0.02
