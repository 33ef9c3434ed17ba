"""The device entry's signature, as TileLang prints it, tied to parameters by name."""

from __future__ import annotations

import pytest

from kaas.compiler.signature import SignatureMismatch, match_signature
from kaas.proto.launch import Parameter

A = Parameter(name="a", role="in", dtype="bf16", shape=("m", 256))
B = Parameter(name="b", role="in", dtype="bf16", shape=("n", 256))
D = Parameter(name="d", role="out", dtype="fp32", shape=("m", "n"))
ALPHA = Parameter(name="alpha", role="scalar", dtype="fp32")


def source(arguments: str, kind: str = "__cube__") -> str:
    return (
        "#include <tl_templates/ascend/common.h>\n"
        "__simd_vf__ __aicore__ inline void helper(__ubuf__ float* x) {\n}\n"
        f'extern "C" __global__ {kind} void main_kernel({arguments}) {{\n  asc_init();\n}}\n'
    )


FULL = "__gm__ bfloat16_t* a, __gm__ bfloat16_t* b, __gm__ float* d, float alpha, int32_t m, int32_t n"


@pytest.mark.parametrize("kind", ["__cube__", "__vector__", "__mix__(1, 2)", "__mix__(1,1) __simt__"])
def test_arguments_come_in_device_order_whatever_the_kernel_kind(kind):
    matched = match_signature(source(FULL, kind), "main_kernel", (A, B, D, ALPHA))

    assert [(argument.name, argument.kind, argument.dtype) for argument in matched] == [
        ("a", "pointer", "bf16"),
        ("b", "pointer", "bf16"),
        ("d", "pointer", "fp32"),
        ("alpha", "scalar", "fp32"),
        ("m", "symbol", "int32"),
        ("n", "symbol", "int32"),
    ]


def test_device_order_need_not_be_call_order():
    text = source("__gm__ float* d, int64_t n, __gm__ bfloat16_t* b, __gm__ bfloat16_t* a, int32_t m")

    matched = match_signature(text, "main_kernel", (A, B, D))

    assert [argument.name for argument in matched] == ["d", "n", "b", "a", "m"]
    assert matched[1].dtype == "int64"


@pytest.mark.parametrize(
    ("arguments", "parameters", "named"),
    [
        (FULL, (A, B, D), "alpha"),
        (FULL, (A, B, D, ALPHA, Parameter(name="bias", role="in", dtype="fp32", shape=("n",))), "bias"),
        (FULL.replace("float* d", "half* d"), (A, B, D, ALPHA), "d is half"),
        (FULL.replace("__gm__ float* d", "float d"), (A, B, D, ALPHA), "d is no pointer"),
        (FULL.replace("float alpha", "__gm__ float* alpha"), (A, B, D, ALPHA), "alpha is a pointer"),
        (FULL.replace("int32_t m", "float m"), (A, B, D, ALPHA), "extent m"),
        (FULL.replace("int32_t n", "int32_t q"), (A, B, D, ALPHA), "argument q"),
        (FULL.replace("bfloat16_t* b", "float8_e4m3_t* b"), (A, B, D, ALPHA), "float8_e4m3_t"),
    ],
)
def test_every_disagreement_is_named(arguments, parameters, named):
    with pytest.raises(SignatureMismatch, match=named.replace("*", r"\*")):
        match_signature(source(arguments), "main_kernel", parameters)


def test_another_entry_or_several_are_refused():
    one = source("__gm__ bfloat16_t* a, int32_t m")
    two = one + one.replace("main_kernel", "main_kernel_1")

    with pytest.raises(SignatureMismatch, match="main_kernel_1"):
        match_signature(two, "main_kernel", (A,))
    with pytest.raises(SignatureMismatch, match="no kernel"):
        match_signature("int nothing;", "main_kernel", (A,))
