"""Block-scaled products and narrow operands of the cube on the CPU twin, against sums in float64."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support.twin_toolkit import Twin

from kaas.compiler.twin.install import ensure_twin_home
from kaas.proto.errors import DeviceError

HEADER = '#include "c_api/asc_simd.h"\n'
C_TYPES = {
    "e4m3": "float8_e4m3_t",
    "e5m2": "float8_e5m2_t",
    "e2m1": "float4_e2m1x2_t",
    "e1m2": "float4_e1m2x2_t",
}
ROWS, COLUMNS, DEPTH = 32, 48, 128
RIGHT_L1 = 64 * 1024
SCALES_L1 = 128 * 1024


@pytest.fixture(scope="module")
def twin() -> Twin:
    return Twin(ensure_twin_home())


def bits_of(dtype: str) -> int:
    return 4 if dtype in ("e2m1", "e1m2") else 8


@functools.cache
def values_of_codes(dtype: str) -> np.ndarray:
    """The value of every code, from the definition of the format."""
    exponent_bits, mantissa_bits, bias = {
        "e4m3": (4, 3, 7),
        "e5m2": (5, 2, 15),
        "e2m1": (2, 1, 1),
        "e1m2": (1, 2, 1),
    }[dtype]
    values = []
    for code in range(2 ** bits_of(dtype)):
        mantissa = code % 2**mantissa_bits
        exponent = code >> mantissa_bits & 2**exponent_bits - 1
        top = 2**exponent_bits - 1
        if exponent == 0:
            value = mantissa / 2**mantissa_bits * 2.0 ** (1 - bias)
        else:
            value = (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
        if dtype == "e4m3" and exponent == top and mantissa == 7:
            value = np.nan
        if dtype == "e5m2" and exponent == top:
            value = np.nan if mantissa else np.inf
        values.append(-value if code >> (bits_of(dtype) - 1) else value)
    return np.array(values)


def finite_codes(dtype: str) -> np.ndarray:
    """Codes of moderate size, so that every sum is exact in fp32."""
    values = values_of_codes(dtype)
    small = np.isfinite(values) & (np.abs(values) <= 2) & ((np.abs(values) >= 0.25) | (values == 0))
    return np.flatnonzero(small).astype(np.uint8)


def stored(codes: np.ndarray, dtype: str) -> np.ndarray:
    """Codes [rows, K] as bytes: two of the four-bit ones to a byte, the first in the low half."""
    return codes if bits_of(dtype) == 8 else codes[:, 0::2] | codes[:, 1::2] << 4


def kernel(
    left: str,
    right: str,
    *,
    scaled: bool,
    depth: int = DEPTH,
    rows: int = ROWS,
    columns: int = COLUMNS,
    transposed: str = "",
    flags: str = "0, true, false, true",
) -> str:
    """D = A B^T of one tile: everything through L1, in the calls and argument order of generated code.

    Scales come as [depth / 64, rows] pairs of bytes; a fractal of them is 16 rows of one pair. The operand
    ``transposed`` ("a" or "b") is stored [depth, rows].
    """
    bits, pairs = bits_of(left), -(-depth // 64)
    wide = 256 // bits  # elements in a fractal's row
    mode = "static_cast<asc_load_l2_cache_mode>(0)"

    def load(name: str, at: int, lines: int, length: int) -> str:
        line_bytes = length * bits // 8
        return (
            f"asc_set_gm2l1_nz_para(1, 1, {lines}, 0);\n"
            f"asc_copy_gm2l1_nd2nz((__cbuf__ int8_t*){at}, {name}, {line_bytes}, {mode}, {lines}, "
            f"{line_bytes}, 0, 0);\n"
        )

    def side(name: str, letter: str, address: str, dtype: str, at: int, height: int) -> tuple[str, str]:
        """Global memory to L1, and L1 to L0."""
        blocks, scale_at = height // 16, SCALES_L1 + (0 if letter == "a" else 16 * 1024)
        if letter == transposed:
            steps = f"{depth // 16}, {height // wide}, {depth // 16}, {blocks}"
            loads = load(name, at, depth, height)
        else:
            steps = f"{blocks}, {-(-depth // wide)}, {blocks}, {blocks}"
            loads = load(name, at, height, depth)
        turn = "_transpose" if letter == transposed else ""
        feeds = (
            f"asc_copy_l12l0{letter}{turn}(({address} {C_TYPES[dtype]}*)0, (__cbuf__ {C_TYPES[dtype]}*){at}, "
            f"0, 0, {steps});\n"
        )
        if scaled:
            loads += (
                f"asc_set_gm2l1_nz_para(1, 1, {pairs}, 0);\n"
                f"asc_copy_gm2l1_nd2nz((__cbuf__ uint16_t*){scale_at}, {name}_scales, {2 * height}, {mode}, "
                f"{pairs}, {height}, 0, 0);\n"
            )
            feeds += (
                f"asc_copy_l12l0{letter}_mx(0, (__cbuf__ fp8_e8m0_t*){scale_at}, 0, 0, {blocks}, {pairs}, "
                f"{pairs}, {pairs});\n"
            )
        return loads, feeds

    a_loads, a_feeds = side("left", "a", "__ca__", left, 0, rows)
    b_loads, b_feeds = side("right", "b", "__cb__", right, RIGHT_L1, columns)
    return (
        HEADER
        + 'extern "C" __global__ __cube__ void kernel_under_test(__gm__ int8_t* left, __gm__ int8_t* right, '
        + "__gm__ uint16_t* left_scales, __gm__ uint16_t* right_scales, __gm__ float* target) {\n"
        + a_loads
        + b_loads
        + "asc_sync_notify(PIPE_MTE2, PIPE_MTE1, 0); asc_sync_wait(PIPE_MTE2, PIPE_MTE1, 0);\n"
        + a_feeds
        + b_feeds
        + "asc_sync_notify(PIPE_MTE1, PIPE_M, 0); asc_sync_wait(PIPE_MTE1, PIPE_M, 0);\n"
        + f"asc_mmad{'_mx' if scaled else ''}((__cc__ float*)0, (__ca__ {C_TYPES[left]}*)0, "
        + f"(__cb__ {C_TYPES[right]}*)0, {rows}, {depth}, {columns}, {flags});\n"
        + "asc_sync_notify(PIPE_M, PIPE_FIX, 0); asc_sync_wait(PIPE_M, PIPE_FIX, 0);\n"
        + "asc_set_l0c_copy_nz_para(1, 0, 0);\n"
        + f"asc_copy_l0c2gm(target, (__cc__ float*)0, {columns}, {rows}, {columns}, {rows}, "
        + "static_cast<asc_store_l2_cache_mode>(0), static_cast<asc_unit_flag_mode>(0), "
        + "static_cast<asc_quant_mode>(0), static_cast<asc_relu_pre_mode>(0), false, true, 0, 0);\n}\n"
    )


class Operand:
    """Codes [rows, K] and scale bytes [rows, K / 32] of one side."""

    def __init__(self, dtype: str, rows: int, depth: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.dtype, self.depth, self.transposed = dtype, depth, False
        self.codes = random.choice(finite_codes(dtype), (rows, depth))
        self.scales = random.integers(126, 129, (rows, -(-depth // 64) * 2)).astype(np.uint8)

    def bytes(self) -> np.ndarray:
        return np.ascontiguousarray(stored(self.codes.T if self.transposed else self.codes, self.dtype))

    def pairs(self) -> np.ndarray:
        """[K / 64, rows] words, the first scale in the low byte."""
        return np.ascontiguousarray(self.scales.view(np.uint16).T)

    def values(self, *, scaled: bool) -> np.ndarray:
        plain = values_of_codes(self.dtype)[self.codes]
        if not scaled:
            return plain
        factors = np.where(self.scales == 255, np.nan, 2.0 ** (self.scales.astype(np.float64) - 127))
        return plain * np.repeat(factors, 32, axis=1)[:, : self.depth]


def product(twin: Twin, source: str, left: Operand, right: Operand) -> np.ndarray:
    target = np.full((len(left.codes), len(right.codes)), 7, dtype=np.float32)
    twin.run(twin.compile(source), 1, left.bytes(), right.bytes(), left.pairs(), right.pairs(), target)
    return target


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("e4m3", "e4m3"),
        ("e5m2", "e5m2"),
        ("e4m3", "e5m2"),
        ("e2m1", "e2m1"),
        ("e1m2", "e1m2"),
        ("e1m2", "e2m1"),
    ],
)
def test_a_scaled_product_takes_a_scale_for_every_32_values_of_a_row(
    twin: Twin, left: str, right: str
) -> None:
    a, b = Operand(left, ROWS, DEPTH, 1), Operand(right, COLUMNS, DEPTH, 2)
    expected = a.values(scaled=True) @ b.values(scaled=True).T
    actual = product(twin, kernel(left, right, scaled=True), a, b)
    assert np.array_equal(actual, expected.astype(np.float32))


@pytest.mark.parametrize(("left", "right"), [("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e5m2", "e4m3")])
def test_a_plain_product_of_8_bit_floats_ignores_scales(twin: Twin, left: str, right: str) -> None:
    a, b = Operand(left, ROWS, DEPTH, 3), Operand(right, COLUMNS, DEPTH, 4)
    expected = a.values(scaled=False) @ b.values(scaled=False).T
    actual = product(twin, kernel(left, right, scaled=False), a, b)
    assert np.array_equal(actual, expected.astype(np.float32))


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2", "e2m1", "e1m2"])
def test_every_code_of_the_narrow_formats_has_its_value(twin: Twin, dtype: str) -> None:
    values = values_of_codes(dtype)
    a, b = Operand(dtype, len(values), 64, 5), Operand(dtype, 16, 64, 6)
    a.codes[:], b.codes[:] = 0, 0
    a.codes[:, 0] = np.arange(len(values))
    b.codes[:, 0] = np.flatnonzero(values == 1)[0]
    a.scales[:], b.scales[:] = 127, 127
    source = kernel(dtype, dtype, scaled=True, depth=64, rows=len(values), columns=16)
    expected = np.repeat(values[:, None], 16, axis=1).astype(np.float32)
    assert np.array_equal(product(twin, source, a, b), expected, equal_nan=True)


@pytest.mark.parametrize("depth", [32, 96, 160])
@pytest.mark.parametrize("dtype", ["e4m3", "e2m1"])
def test_a_depth_that_is_no_multiple_of_a_fractal_ignores_what_lies_behind_it(
    twin: Twin, dtype: str, depth: int
) -> None:
    a, b = Operand(dtype, ROWS, depth, 7), Operand(dtype, COLUMNS, depth, 8)
    a.scales[:, depth // 32 :] = 255  # of the missing half of the last pair
    expected = a.values(scaled=True) @ b.values(scaled=True).T
    actual = product(twin, kernel(dtype, dtype, scaled=True, depth=depth), a, b)
    assert np.array_equal(actual, expected.astype(np.float32))


def test_extreme_scales_keep_their_powers_and_255_is_no_number(twin: Twin) -> None:
    a, b = Operand("e4m3", ROWS, DEPTH, 9), Operand("e4m3", COLUMNS, DEPTH, 10)
    values = values_of_codes("e4m3")
    whole = np.flatnonzero(np.isin(values, [-2, -1, 1, 2])).astype(np.uint8)
    a.codes, b.codes = (np.random.default_rng(1).choice(whole, x.codes.shape) for x in (a, b))
    a.codes[1, 1:], b.codes[0, 1:] = 0, 0  # one summand each: no intermediate infinity
    a.scales[:], b.scales[:] = 127, 127
    a.scales[0], b.scales[0] = 0, 254  # 2^-127 and 2^127
    a.scales[1], b.scales[1] = 254, 0
    a.scales[2, 1] = 255
    expected = a.values(scaled=True) @ b.values(scaled=True).T
    actual = product(twin, kernel("e4m3", "e4m3", scaled=True), a, b)
    with np.errstate(over="ignore"):
        rounded = expected.astype(np.float32)
    assert np.isnan(actual[2]).all()
    assert np.array_equal(np.delete(actual, 2, axis=0), np.delete(rounded, 2, axis=0))
    assert np.isfinite(actual[0]).all()
    assert np.isfinite(actual[1, 1])
    assert np.isinf(actual[1, 0])


def test_scales_that_nobody_copied_are_no_numbers(twin: Twin) -> None:
    a, b = Operand("e4m3", ROWS, DEPTH, 11), Operand("e4m3", COLUMNS, DEPTH, 12)
    source = kernel("e4m3", "e4m3", scaled=True)
    at = source.index("asc_copy_l12l0a_mx")
    without = source[:at] + source[source.index("\n", at) :]
    assert np.isnan(product(twin, without, a, b)).all()


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("dtype", ["e4m3", "e2m1"])
def test_narrow_elements_are_transposed_on_the_way_to_l0(twin: Twin, dtype: str, side: str) -> None:
    a, b = Operand(dtype, 64, DEPTH, 13), Operand(dtype, 128, DEPTH, 14)
    (a if side == "a" else b).transposed = True
    expected = a.values(scaled=True) @ b.values(scaled=True).T
    source = kernel(dtype, dtype, scaled=True, rows=64, columns=128, transposed=side)
    assert np.array_equal(product(twin, source, a, b), expected.astype(np.float32))


@pytest.mark.parametrize(("dtype", "depth", "multiple"), [("e4m3", 48, 2), ("e2m1", 96, 4)])
def test_narrow_elements_are_transposed_in_whole_squares_only(
    twin: Twin, dtype: str, depth: int, multiple: int
) -> None:
    a, b = Operand(dtype, 64, depth, 13), Operand(dtype, 64, depth, 14)
    a.transposed = True
    source = kernel(dtype, dtype, scaled=True, rows=64, columns=64, depth=depth, transposed="a")
    with pytest.raises(DeviceError, match=f"multiple of {multiple} fractal rows"):
        product(twin, source, a, b)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (kernel("e2m1", "e2m1", scaled=False), "operands other than fp32, fp16, bf16 and fp8"),
        (kernel("e4m3", "e2m1", scaled=True), "operands of these two types"),
        (kernel("e4m3", "e4m3", scaled=True, flags="0, true, true, true"), "a bias from the table buffer"),
        (kernel("e4m3", "e4m3", scaled=True, flags="1, true, false, true"), "unit flag mode 1 is reserved"),
    ],
    ids=["plain fp4", "fp8 with fp4", "bias", "unit flag"],
)
def test_what_the_cube_does_not_do_is_refused_by_name(twin: Twin, source: str, message: str) -> None:
    a, b = Operand("e4m3", ROWS, DEPTH, 15), Operand("e4m3", COLUMNS, DEPTH, 16)
    with pytest.raises(DeviceError, match=message):
        product(twin, source, a, b)


def test_scales_beyond_their_memory_are_out_of_range(twin: Twin) -> None:
    a, b = Operand("e4m3", ROWS, DEPTH, 17), Operand("e4m3", COLUMNS, DEPTH, 18)
    source = kernel("e4m3", "e4m3", scaled=True).replace("asc_copy_l12l0a_mx(0,", "asc_copy_l12l0a_mx(4096,")
    with pytest.raises(DeviceError, match="out of range on the scales of L0A"):
        product(twin, source, a, b)
