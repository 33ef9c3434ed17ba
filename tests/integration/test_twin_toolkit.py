"""The CPU twin toolkit: command lines, engine, checks, runtime."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.twin_toolkit import CompileError, Twin, bf16, schedule

from kaas.client.acl import AclRuntime
from kaas.compiler.twin.install import ensure_twin_home
from kaas.proto.errors import DeviceError, ToolchainMissing

HEADER = "#include <c_api/asc_simd.h>\n"
LOAD = (
    "asc_copy_gm2ub_align((__ubuf__ uint8_t*)ub, (__gm__ uint8_t*)source, 1, 256, 0, 0, false, "
    "static_cast<asc_load_l2_cache_mode>(0), 256, 256);\n"
)
STORE = (
    "asc_copy_ub2gm_align((__gm__ uint8_t*)target, (__ubuf__ uint8_t*)ub, 1, 256, "
    "static_cast<asc_store_l2_cache_mode>(0), 256, 256);\n"
)
NOTIFY = "asc_sync_notify(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(3));\n"
WAIT = "asc_sync_wait(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(3));\n"


def vector_kernel(body: str) -> str:
    return (
        HEADER + 'extern "C" __global__ __vector__ void kernel_under_test(__gm__ float* source, '
        "__gm__ float* target, int32_t count) {\n  asc_init();\n  __ubuf__ float *ub = (__ubuf__ float *)0;\n"
        + body
        + "}\n"
    )


def cube_kernel(body: str) -> str:
    return (
        HEADER
        + 'extern "C" __global__ __cube__ void kernel_under_test(__gm__ float* target) {\n'
        + body
        + "}\n"
    )


@pytest.fixture(scope="module")
def twin() -> Twin:
    return Twin(ensure_twin_home())


@pytest.fixture
def numbers() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(64, dtype=np.float32), np.zeros(64, dtype=np.float32)


def test_a_copy_kernel_goes_through_the_two_stage_build_and_acl(
    twin: Twin, numbers: tuple[np.ndarray, np.ndarray]
) -> None:
    source, target = numbers
    twin.run(twin.compile(vector_kernel(LOAD + NOTIFY + WAIT + STORE)), 1, source, target, 64)
    assert np.array_equal(source, target)


def test_a_scalar_stream_reads_ub_after_its_flag(twin: Twin, numbers: tuple[np.ndarray, np.ndarray]) -> None:
    source, target = numbers
    body = (
        LOAD
        + "asc_sync_notify(PIPE_MTE2, PIPE_S, static_cast<event_t>(0));\n"
        + "asc_sync_wait(PIPE_MTE2, PIPE_S, static_cast<event_t>(0));\n"
        + "for (int i = 0; i < count; ++i) target[i] = ub[i] * 2.0f + block_idx;\n"
    )
    image = twin.compile(vector_kernel(body))
    for seed in range(9):
        target[:] = 0
        with schedule("adversarial", seed):
            twin.run(image, 1, source, target, 64)
        assert np.array_equal(target, source * 2)


MULTIPLY_16 = (
    "__cbuf__ {type} *l1 = (__cbuf__ {type} *)0;\n"
    "asc_set_gm2l1_nz_para(1, 1, 16, 0);\n"
    "asc_copy_gm2l1_nd2nz(l1, left, {pitch}, static_cast<asc_load_l2_cache_mode>(0), 16, 16, 0, 0);\n"
    "asc_copy_gm2l1_nd2nz(l1 + 512, right, {pitch}, static_cast<asc_load_l2_cache_mode>(0), 16, 16, 0, 0);\n"
    "asc_sync_notify(PIPE_MTE2, PIPE_MTE1, 0); asc_sync_wait(PIPE_MTE2, PIPE_MTE1, 0);\n"
    "asc_copy_l12l0a((__ca__ {type}*)0, l1, 0, 0, 1, {steps}, 1, 1);\n"
    "asc_copy_l12l0b((__cb__ {type}*)0, l1 + 512, 0, 0, 1, {steps}, 1, 1);\n"
    "asc_sync_notify(PIPE_MTE1, PIPE_M, 0); asc_sync_wait(PIPE_MTE1, PIPE_M, 0);\n"
    "{before}"
    "asc_mmad((__cc__ float*)0, (__ca__ {type}*)0, (__cb__ {type}*)0, 16, 16, 16, 0, 1, 0, 1);\n"
    "asc_sync_notify(PIPE_M, PIPE_FIX, 0); asc_sync_wait(PIPE_M, PIPE_FIX, 0);\n"
    "asc_copy_l0c2gm(target, (__cc__ float*)0, 16, 16, 16, 16, static_cast<asc_store_l2_cache_mode>(0), "
    "static_cast<asc_unit_flag_mode>(0), static_cast<asc_quant_mode>({quant}), "
    "static_cast<asc_relu_pre_mode>({relu}), 0, 1, 0, 0);\n"
)


def multiply_16(kind: str, out: str, *, before: str = "", quant: int = 0, relu: int = 0) -> str:
    """D[16, 16] = A[16, 16] @ B[16, 16].T on the cube."""
    size = 4 if kind == "float" else 2
    body = MULTIPLY_16.format(
        type=kind, pitch=16 * size, steps=size // 2, before=before, quant=quant, relu=relu
    )
    return (
        HEADER
        + 'extern "C" __global__ __cube__ void kernel_under_test'
        + f"(__gm__ {kind}* left, __gm__ {kind}* right, __gm__ {out}* target) {{\n{body}}}\n"
    )


def test_hf32_rounds_fp32_operands_and_only_while_it_is_enabled(twin: Twin) -> None:
    left = np.zeros((16, 16), dtype=np.float32)
    right = np.eye(16, dtype=np.float32)
    left[0, :4] = [1 + 2**-12, 1 + 3 * 2**-12, 1 + 2**-11, 3 + 2**-14]
    results = {}
    for name, before in {
        "off": "",
        "even": "asc_enable_hf32(); asc_set_hf32_round_mode(asc_hf32_round_mode::NEAREST_EVEN);\n",
        "away": "asc_enable_hf32(); asc_set_hf32_round_mode(asc_hf32_round_mode::NEAREST_AWAY);\n",
        "off again": "asc_enable_hf32(); asc_disable_hf32();\n",
    }.items():
        target = np.full((16, 16), np.nan, dtype=np.float32)
        twin.run(twin.compile(multiply_16("float", "float", before=before)), 1, left, right, target)
        results[name] = target[0, :4].tolist()
    assert results["off"] == results["off again"] == left[0, :4].tolist()
    assert results["even"] == [1, 1 + 2**-10, 1 + 2**-11, 3]
    assert results["away"] == [1 + 2**-11, 1 + 2**-10, 1 + 2**-11, 3]


@pytest.mark.parametrize(("out", "quant", "dtype"), [("half", 1, np.float16), ("bfloat16_t", 16, np.uint16)])
def test_the_fixpipe_rounds_to_nearest_even_and_clips_below_zero(
    twin: Twin, out: str, quant: int, dtype: type
) -> None:
    random = np.random.default_rng(3)
    left = random.standard_normal((16, 16)).astype(np.float16)
    right = random.standard_normal((16, 16)).astype(np.float16)
    target = np.zeros((16, 16), dtype=dtype)
    twin.run(twin.compile(multiply_16("half", out, quant=quant, relu=1)), 1, left, right, target)
    exact = np.maximum(left.astype(np.float64) @ right.astype(np.float64).T, 0)
    got = target.astype(np.float64) if out == "half" else (target.astype(np.uint32) << 16).view(np.float32)
    assert np.allclose(got, exact, rtol=2**-10 if out == "half" else 2**-8, atol=1e-5)
    assert (got == 0).sum() == (exact == 0).sum()


@pytest.mark.parametrize(
    ("out", "switch", "quant"),
    [("float", "float", 0), ("half", "float16", 1), ("bfloat16_t", "bfloat", 16)],
)
def test_atomic_stores_of_many_blocks_add_up(twin: Twin, out: str, switch: str, quant: int) -> None:
    ones = np.ones((16, 16), dtype=np.float16)
    target = np.zeros((16, 16), dtype={"float": np.float32, "half": np.float16}.get(out, np.uint16))
    source = multiply_16("half", out, before=f"asc_set_atomic_add_{switch}();\n", quant=quant)
    twin.run(twin.compile(source), 8, ones, ones, target)
    got = target if out != "bfloat16_t" else (target.astype(np.uint32) << 16).view(np.float32)
    assert (got == 128).all()


def test_every_block_of_the_grid_runs(twin: Twin) -> None:
    target = np.zeros(200, dtype=np.float32)
    twin.run(twin.compile(cube_kernel("target[block_idx] = block_idx + asc_get_block_num();")), 200, target)
    assert np.array_equal(target, np.arange(200) + 200)


def test_vector_and_cube_cores_of_a_mixed_block_work_together(twin: Twin) -> None:
    # Each AIV brings one 16x16 operand into L1; the AIC multiplies them.
    mode = "static_cast<asc_load_l2_cache_mode>(0)"
    source = (
        HEADER
        + 'extern "C" __global__ __mix__(1, 2) void kernel_under_test(__gm__ bfloat16_t* left, '
        + "__gm__ bfloat16_t* right, __gm__ float* target) {\n"
        + "__ubuf__ bfloat16_t *ub = (__ubuf__ bfloat16_t *)0;\n"
        + "__cbuf__ bfloat16_t *l1 = (__cbuf__ bfloat16_t *)0;\n"
        + "if ASC_IS_AIV {\n"
        + "int sub = asc_get_sub_block_id();\n"
        + f"asc_copy_gm2ub_align(ub, sub == 0 ? left : right, 1, 512, 0, 0, false, {mode}, 512, 512);\n"
        + "asc_sync_notify(PIPE_MTE2, PIPE_MTE3, 0); asc_sync_wait(PIPE_MTE2, PIPE_MTE3, 0);\n"
        + "asc_copy_ub2l1(l1 + sub * 256, ub, 1, 16, 0, 0);\n"
        + "asc_sync_intra_arrive(PIPE_MTE3, 5);\n"
        + "}\n"
        + "if ASC_IS_AIC {\n"
        + "asc_sync_intra_wait(PIPE_MTE1, 5); asc_sync_intra_wait(PIPE_MTE1, 21);\n"
        + "asc_copy_l12l0a((__ca__ bfloat16_t*)0, l1, 0, 0, 1, 1, 1, 1);\n"
        + "asc_copy_l12l0b((__cb__ bfloat16_t*)0, l1 + 256, 0, 0, 1, 1, 1, 1);\n"
        + "asc_sync_notify(PIPE_MTE1, PIPE_M, 0); asc_sync_wait(PIPE_MTE1, PIPE_M, 0);\n"
        + "asc_mmad((__cc__ float*)0, (__ca__ bfloat16_t*)0, (__cb__ bfloat16_t*)0, 16, 16, 16, 3, 1, 0, "
        + "1);\n"
        + "asc_set_l0c_copy_nz_para(1, 0, 0);\n"
        + "asc_copy_l0c2gm(target, (__cc__ float*)0, 16, 16, 16, 16, "
        + "static_cast<asc_store_l2_cache_mode>(0), static_cast<asc_unit_flag_mode>(3), "
        "static_cast<asc_quant_mode>(0), " + "static_cast<asc_relu_pre_mode>(0), 0, 1, 0, 0);\n" + "}\n}\n"
    )
    random = np.random.default_rng(1)
    left = random.integers(-8, 9, (16, 16)).astype(np.float32)
    right = random.integers(-8, 9, (16, 16)).astype(np.float32)
    left_bits, right_bits = bf16(left), bf16(right)
    image = twin.compile(source)
    for seed in range(12):
        target = np.full((16, 16), np.nan, dtype=np.float32)
        with schedule("adversarial", seed):
            twin.run(image, 1, left_bits, right_bits, target)
        assert np.array_equal(target, left @ right.T)


CROSSING = vector_kernel(
    "int me = block_idx, next = (me + 1) % asc_get_block_num();\n"
    "ub[0] = 100.0f + me;\n"
    "asc_sync_notify(PIPE_S, PIPE_MTE3, 0); asc_sync_wait(PIPE_S, PIPE_MTE3, 0);\n"
    "asc_copy_ub2gm_align((__gm__ uint8_t*)(source + me * 8), (__ubuf__ uint8_t*)ub, 1, 32, "
    "static_cast<asc_store_l2_cache_mode>(0), 32, 32);\n"
    "asc_sync_inter_arrive(PIPE_MTE3, 1); asc_sync_inter_wait(PIPE_MTE2, 1);\n"
    "asc_copy_gm2ub_align((__ubuf__ uint8_t*)(ub + 64), (__gm__ uint8_t*)(source + next * 8), 1, 32, 0, 0, "
    "false, static_cast<asc_load_l2_cache_mode>(0), 32, 32);\n"
    "asc_sync_notify(PIPE_MTE2, PIPE_S, 0); asc_sync_wait(PIPE_MTE2, PIPE_S, 0);\n"
    "target[me] = ub[64];\n"
)


def test_blocks_that_wait_for_each_other_make_progress_together(twin: Twin) -> None:
    image = twin.compile(CROSSING)
    for seed in range(6):
        exchanged, target = np.zeros(8 * 8, dtype=np.float32), np.zeros(8, dtype=np.float32)
        with schedule("adversarial", seed):
            twin.run(image, 8, exchanged, target, 0)
        assert np.array_equal(target, 100 + (np.arange(8) + 1) % 8)


def test_more_waiting_blocks_than_cores_are_refused(twin: Twin) -> None:
    image = twin.compile(CROSSING)
    exchanged, target = np.zeros(57 * 8, dtype=np.float32), np.zeros(57, dtype=np.float32)
    with pytest.raises(DeviceError, match="57 blocks need as many cores"):
        twin.run(image, 57, exchanged, target, 0)


def test_a_missing_synchronisation_shows_as_a_wrong_number_in_adversarial_order(
    twin: Twin, numbers: tuple[np.ndarray, np.ndarray]
) -> None:
    source, target = numbers
    whole = twin.compile(vector_kernel(LOAD + NOTIFY + WAIT + STORE))
    broken = twin.compile(vector_kernel(LOAD + STORE))
    with schedule("eager"):
        twin.run(broken, 1, source, target, 64)
    assert np.array_equal(source, target)
    wrong = 0
    for seed in range(30):
        with schedule("adversarial", seed):
            target[:] = 0
            twin.run(whole, 1, source, target, 64)
            assert np.array_equal(source, target)
            target[:] = 0
            twin.run(broken, 1, source, target, 64)
            wrong += not np.array_equal(source, target)
    assert wrong >= 5


def test_a_seed_gives_the_same_result_every_time(twin: Twin, numbers: tuple[np.ndarray, np.ndarray]) -> None:
    source, target = numbers
    broken = twin.compile(vector_kernel(LOAD + STORE))
    results = []
    for _ in range(2):
        for seed in range(12):
            target[:] = 0
            with schedule("adversarial", seed):
                twin.run(broken, 1, source, target, 64)
            results.append(np.array_equal(source, target))
    assert results[:12] == results[12:]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            LOAD.replace("(__ubuf__ uint8_t*)ub", "(__ubuf__ uint8_t*)ub + 262016"),
            [
                "block 0, AIV0, PIPE_MTE2, asc_copy_gm2ub_align",
                "out of range on UB",
                "offset 262016 + 256 bytes",
            ],
        ),
        (
            LOAD.replace("(__ubuf__ uint8_t*)ub", "(__ubuf__ uint8_t*)ub + 4"),
            ["asc_copy_gm2ub_align: misaligned on UB: offset 4 is no multiple of 32"],
        ),
        ("ub[70000] = 1.0f;", ["block 0, AIV0, PIPE_S", "out of range on UB of AIV0: offset 280000"]),
        (
            "target = nullptr; *target = 1.0f;",
            ["block 0, AIV0, PIPE_S", "which no tensor or on-chip memory holds"],
        ),
        (
            LOAD + WAIT + STORE,
            ["deadlock", "block 0, AIV0, PIPE_MTE3", "flag 3 from PIPE_MTE2, which nobody sets"],
        ),
        (
            "asc_sync_wait(PIPE_V, PIPE_S, 1);",
            ["deadlock", "block 0, AIV0, PIPE_S: asc_sync_wait waits for flag 1 from PIPE_V"],
        ),
        (LOAD + NOTIFY + STORE, ["block 0, AIV0: flag 3 from PIPE_MTE2 to PIPE_MTE3 is left set at the end"]),
        ("asc_sync_notify(PIPE_MTE2, PIPE_MTE3, 32);", ["asc_sync_notify: id 32 is not in 0..31"]),
        ("asc_sync_notify(PIPE_M, PIPE_MTE2, 0);", ["PIPE_M exists on the AIC only"]),
        ("asc_sync_intra_arrive(PIPE_MTE3, 0);", ["meant for a core that this kernel does not have"]),
        (
            "asc_lock(PIPE_MTE2, 1, ASC_LOCK_NON_BLOCK);",
            ["asc_lock: a mode that does not block is not modelled by the CPU twin"],
        ),
    ],
)
def test_a_vector_kernel_that_misbehaves_fails_with_the_place(
    twin: Twin, numbers: tuple[np.ndarray, np.ndarray], body: str, expected: list[str]
) -> None:
    text = twin.failure(vector_kernel(body), 1, *numbers, 64)
    for part in expected:
        assert part in text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "asc_fill_l1((__cbuf__ uint16_t*)0 + 262128, 0u, {.repeat = 2, .blk_num = 1, .dst_gap = 0});",
            [
                "PIPE_MTE2, asc_fill_l1",
                "out of range on L1: offset 524256 + 64 bytes exceeds its 524288 bytes",
            ],
        ),
        (
            "asc_mmad((__cc__ float*)0, (__ca__ half*)0, (__cb__ half*)0, 256, 256, 16, 0, 1, 0, 1);",
            ["asc_mmad: out of range on L0A: offset 0 + 131072 bytes exceeds its 65536 bytes"],
        ),
        (
            "asc_mmad((__cc__ float*)0, (__ca__ half*)0 + 16, (__cb__ half*)0, 16, 16, 16, 0, 1, 0, 1);",
            ["asc_mmad: misaligned on L0A: offset 32 is no multiple of 512"],
        ),
        (
            "asc_copy_l0c2gm(target, (__cc__ float*)0, 16, 16, 16, 16, "
            "static_cast<asc_store_l2_cache_mode>(0), static_cast<asc_unit_flag_mode>(3), "
            "static_cast<asc_quant_mode>(0), "
            "static_cast<asc_relu_pre_mode>(0), 0, 1, 0, 0);",
            ["deadlock", "PIPE_FIX: asc_copy_l0c2gm", "unit flag of the accumulator at L0C offset 0"],
        ),
        (
            "asc_copy_l0c2gm(target, (__cc__ float*)0, 16, 16, 16, 16, "
            "static_cast<asc_store_l2_cache_mode>(0), static_cast<asc_unit_flag_mode>(0), "
            "static_cast<asc_quant_mode>(5), "
            "static_cast<asc_relu_pre_mode>(0), 0, 1, 0, 0);",
            ["asc_copy_l0c2gm: quantisation mode 5 is not modelled by the CPU twin"],
        ),
        (
            "__ubuf__ float *ub = (__ubuf__ float *)0; ub[2] = 1;",
            ["the AIC dereferences UB offset 8; it has no UB"],
        ),
    ],
)
def test_a_cube_kernel_that_misbehaves_fails_with_the_place(
    twin: Twin, body: str, expected: list[str]
) -> None:
    text = twin.failure(cube_kernel(body), 1, np.zeros(256, dtype=np.float32))
    for part in expected:
        assert part in text


def test_the_first_failing_block_is_reported(twin: Twin) -> None:
    body = "if (block_idx >= 5) asc_sync_wait(PIPE_FIX, PIPE_S, 0); target[block_idx] = 1;"
    target = np.zeros(40, dtype=np.float32)
    assert "block 5, AIC, PIPE_S" in twin.failure(cube_kernel(body), 40, target)
    assert target[:5].all()


def test_a_failed_kernel_is_reported_at_synchronisation_and_stays_until_the_device_is_reset(
    twin: Twin, numbers: tuple[np.ndarray, np.ndarray]
) -> None:
    runtime = twin.runtime
    binary = runtime.load(twin.compile(cube_kernel("asc_sync_wait(PIPE_FIX, PIPE_S, 0);")))
    function = runtime.function(binary, "kernel_under_test")
    stream = runtime.create_stream()
    argument = numbers[1].ctypes.data.to_bytes(8, "little")
    runtime.launch(function, 1, argument, 8, stream)
    for _ in range(2):
        with pytest.raises(DeviceError, match="deadlock") as caught:
            runtime.synchronize(stream)
        assert caught.value.details["acl_code"] == 507015
    with pytest.raises(DeviceError, match="deadlock"):
        runtime.launch(function, 1, argument, 8, stream)
    runtime.synchronize()  # another stream is not concerned
    runtime.reset_device()
    runtime.synchronize(stream)
    runtime.destroy_stream(stream)
    runtime.unload(binary)


def test_a_wrong_argument_size_is_refused_with_both_sizes(twin: Twin) -> None:
    binary = twin.runtime.load(twin.compile(vector_kernel("")))
    function = twin.runtime.function(binary, "kernel_under_test")
    with pytest.raises(DeviceError, match="take 24 bytes, given are 16"):
        twin.runtime.launch(function, 1, bytes(16), 16)
    with pytest.raises(DeviceError, match="it has: kernel_under_test"):
        twin.runtime.function(binary, "another")
    twin.runtime.unload(binary)


def test_arguments_are_taken_at_their_natural_alignment(twin: Twin) -> None:
    source = (
        HEADER
        + 'extern "C" __global__ __cube__ void kernel_under_test(int8_t a, __gm__ double* target, int32_t b, '
        + "int64_t c, float d) { target[0] = a; target[1] = b; target[2] = c; target[3] = d; }\n"
    )
    target = np.zeros(4)

    class Arguments(ctypes.Structure):
        _fields_ = [
            ("a", ctypes.c_int8),
            ("target", ctypes.c_void_p),
            ("b", ctypes.c_int32),
            ("c", ctypes.c_int64),
            ("d", ctypes.c_float),
        ]

    arguments = Arguments(-3, target.ctypes.data, 70000, -(2**40), 0.5)
    binary = twin.runtime.load(twin.compile(source))
    twin.runtime.launch(
        twin.runtime.function(binary, "kernel_under_test"), 1, bytes(arguments), ctypes.sizeof(arguments)
    )
    twin.runtime.synchronize()
    twin.runtime.unload(binary)
    assert target.tolist() == [-3, 70000, -(2**40), 0.5]


def test_an_unknown_intrinsic_is_refused_by_name(twin: Twin) -> None:
    with pytest.raises(CompileError, match="asc_frobnicate is not modelled by the CPU twin"):
        twin.compile(vector_kernel("asc_frobnicate(ub);"))


def test_a_compile_error_shows_the_line_of_the_source(twin: Twin) -> None:
    source = vector_kernel("int fine = 1;\nint broken = ;\n")
    line = source[: source.index("broken")].count("\n") + 1
    with pytest.raises(CompileError, match=rf"tl_kernel\.asc:{line}:\d+: error: expected"):
        twin.compile(source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--npu-arch=dav-3510", "--npu-arch=dav-2201"), "knows dav-3510 only, not dav-2201"),
        (("--cce-aicore-only", "-shared"), "device objects only"),
        (("-O2", "--no-such-option"), "unknown option --no-such-option"),
    ],
)
def test_a_command_line_beyond_the_twin_is_refused_plainly(
    twin: Twin, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    (tmp_path / "tl_kernel.asc").write_text(vector_kernel(""))
    line = "-O2 -std=c++20 --npu-arch=dav-3510 --cce-aicore-only tl_kernel.asc -o rel.o".replace(*change)
    done = subprocess.run(
        [twin.home / "bin" / "bisheng", *line.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_macros_and_include_paths_reach_the_compiler(twin: Twin, tmp_path: Path) -> None:
    (tmp_path / "own.h").write_text("inline int own() { return OWN; }\n")
    target = np.zeros(1, dtype=np.float32)
    source = '#include "own.h"\n' + cube_kernel("target[0] = own();")
    twin.run(twin.compile(source, flags=[f"-I{tmp_path}", "-DOWN=42"]), 1, target)
    assert target[0] == 42


def test_foreign_images_are_refused_by_name(twin: Twin) -> None:
    with pytest.raises(DeviceError, match="no 64-bit ELF file"):
        twin.runtime.load(b"not an image at all, but long enough to hold an ELF header: " + bytes(64))
    with pytest.raises(DeviceError, match="not an image of the CPU twin"):
        twin.runtime.load(Path(sys.executable).resolve().read_bytes())
    image = twin.compile(vector_kernel(""))
    at = image.index(b"kaas-twin-image ") + len(b"kaas-twin-image ")
    other = image[:at] + b"0000000000000000" + image[at + 16 :]
    with pytest.raises(DeviceError, match="an image of another twin toolkit"):
        twin.runtime.load(other)
    with pytest.raises(DeviceError, match=r"not an image|no 64-bit ELF|does not load"):
        twin.runtime.load(image[: len(image) // 2])


def test_two_images_with_equal_entry_names_are_told_apart(twin: Twin) -> None:
    target = np.zeros(1, dtype=np.float32)
    images = [twin.compile(cube_kernel(f"target[0] = {number};")) for number in (11, 22)]
    binaries = [twin.runtime.load(image) for image in images]
    for binary, number in zip(binaries, (11, 22), strict=True):
        function = twin.runtime.function(binary, "kernel_under_test")
        twin.runtime.launch(function, 1, target.ctypes.data.to_bytes(8, "little"), 8)
        assert target[0] == number
    for binary in binaries:
        twin.runtime.unload(binary)


def test_the_image_is_the_same_bytes_wherever_and_however_it_is_compiled(twin: Twin, tmp_path: Path) -> None:
    source = vector_kernel(LOAD + NOTIFY + WAIT + STORE)
    first = twin.compile(source)
    assert twin.compile(source) == first
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    assert twin.compile(source, environment={"KAAS_TWIN_PCH_DIR": str(blocked / "pch")}) == first
    fresh = twin.compile(source, environment={"KAAS_TWIN_PCH_DIR": str(tmp_path / "pch")})
    assert fresh == first
    assert any((tmp_path / "pch").iterdir())
    assert b"kaas-twin-test-" not in first
    assert str(twin.home).encode() not in first


def test_the_tools_and_headers_hold_no_absolute_path(twin: Twin) -> None:
    for folder in ("bin", "include"):
        for path in sorted((twin.home / folder).rglob("*")):
            if path.is_file():
                assert str(twin.home).encode() not in path.read_bytes(), path


def test_several_processes_may_install_the_same_home_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "KAAS_TWIN_ROOT": str(tmp_path / "root")}
    command = [sys.executable, "-m", "kaas.compiler.twin.install"]

    def install(_: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(install, range(4)))
    assert [process.returncode for process in done] == [0] * 4, done[0].stderr
    assert len({process.stdout for process in done}) == 1
    home = Path(done[0].stdout.strip())
    assert home.parent == tmp_path / "root"
    assert [entry.name for entry in home.parent.iterdir() if entry.is_dir()] == [home.name]
    info = next(home.glob("*-linux/ascend_toolkit_install.info")).read_text()
    assert "version=9.2.0\n" in info
    target = np.zeros(4, dtype=np.float32)
    other = Twin(home)
    other.run(other.compile(cube_kernel("target[block_idx] = 1;")), 4, target)
    assert target.all()


def test_a_folder_with_something_else_in_it_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(ToolchainMissing, match="holds no CPU twin"):
        ensure_twin_home(tmp_path)
    assert (tmp_path / "precious").read_text() == "data"


def test_a_host_without_a_compiler_is_told_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainMissing, match=r"g\+\+, which is not on PATH"):
        ensure_twin_home(tmp_path / "home")


def test_a_forked_child_launches_like_its_parent(twin: Twin, numbers: tuple[np.ndarray, np.ndarray]) -> None:
    source, target = numbers
    image = twin.compile(vector_kernel(LOAD + NOTIFY + WAIT + STORE))
    twin.run(image, 8, source, target, 64)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            target[:] = 0
            twin.run(image, 8, source, target, 64)
            status = 0 if np.array_equal(source, target) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_launch_side_by_side(twin: Twin) -> None:
    image = twin.compile(vector_kernel(LOAD + NOTIFY + WAIT + STORE))

    def work(number: int) -> bool:
        source, target = np.full(64, number, np.float32), np.zeros(64, np.float32)
        for _ in range(10):
            target[:] = 0
            twin.run(image, 3, source, target, 64)
            if not np.array_equal(source, target):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_the_device_says_what_it_was_configured_to_be(twin: Twin) -> None:
    runtime = AclRuntime(twin.home / "lib64" / "libascendcl.so")
    assert runtime.is_twin
    try:
        runtime.configure_twin("Ascend950DT_9581", 32, 64)
        assert runtime.soc_name == "Ascend950DT_9581"
        info = runtime.device_info
        assert (info.cube_cores, info.vector_cores, info.npu_arch) == (32, 64, 3510)
    finally:
        runtime.configure_twin("Ascend950PR_9579", 28, 56)
    with pytest.raises(DeviceError, match="core counts above 0"):
        runtime.configure_twin("Ascend950DT_9581", 0, 64)


def test_a_library_that_is_no_runtime_is_a_device_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="as an ACL runtime"):
        _ = AclRuntime(tmp_path / "libascendcl.so").soc_name
