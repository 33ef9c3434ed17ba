"""Element types of launch arguments: their size, what the host calls them, what the device code calls them.

A name says what the bits mean. One kaas type may lie in several host types, where no host library has the
exact one: two fp4 values in a byte, two scales in a 16-bit word.
"""

from __future__ import annotations

import msgspec


class ElementType(msgspec.Struct, frozen=True):
    """``host_names`` are dtype names of torch and NumPy that carry it, the preferred one first.

    ``device_names`` are the C types of a pointer to it in generated Ascend C. ``tilelang`` is what TileLang
    calls it; ``packed`` logical values share one element.
    """

    bytes: int
    host_names: tuple[str, ...]
    device_names: tuple[str, ...]
    tilelang: str
    packed: int = 1


ELEMENT_TYPES: dict[str, ElementType] = {
    "bf16": ElementType(2, ("bfloat16",), ("bfloat16_t",), "bfloat16"),
    "fp16": ElementType(2, ("float16",), ("half",), "float16"),
    "fp32": ElementType(4, ("float32",), ("float",), "float32"),
    "e4m3": ElementType(
        1, ("float8_e4m3fn",), ("fp8_e4_t", "fp8_e4m3fn_t", "float8_e4m3_t", "fp8_e4m3_t"), "float8_e4m3fn"
    ),
    "e5m2": ElementType(1, ("float8_e5m2",), ("fp8_e5_t", "fp8_e5m2_t", "float8_e5m2_t"), "float8_e5m2"),
    # Two fp4 values, the even one in the low nibble.
    "e2m1x2": ElementType(
        1,
        ("float4_e2m1fn_x2", "int8", "uint8"),
        ("fp4_e2m1x2_t", "float4_e2m1x2_t", "fp4x2_e2m1_t"),
        "float4_e2m1fn",
        packed=2,
    ),
    # A power of two as its biased exponent; 127 is 1.0 and 255 is NaN.
    "e8m0": ElementType(1, ("float8_e8m0fnu", "uint8"), ("fp8_e8m0_t", "float8_e8m0_t", "uint8_t"), "uint8"),
    # Two of them, for 64 consecutive values; the first in the low byte.
    "e8m0x2": ElementType(2, ("int16", "uint16"), ("uint16_t", "int16_t"), "uint16"),
    "bool": ElementType(1, ("bool",), ("bool", "int8_t", "uint8_t"), "bool"),
    "int8": ElementType(1, ("int8",), ("int8_t", "signed char"), "int8"),
    "uint8": ElementType(1, ("uint8",), ("uint8_t", "unsigned char"), "uint8"),
    "int16": ElementType(2, ("int16",), ("int16_t", "short"), "int16"),
    "int32": ElementType(4, ("int32",), ("int", "int32_t"), "int32"),
    "int64": ElementType(8, ("int64",), ("int64_t",), "int64"),
}
