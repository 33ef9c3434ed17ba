"""Launch arguments: what is refused and how it is said, and what bytes reach the device entry."""

from __future__ import annotations

import struct
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from kaas.client.launch_plan import LaunchPlan
from kaas.kernel_library.registry import family_named
from kaas.kernel_library.spec import KernelSpec
from kaas.proto.errors import ArtifactDamaged, InvalidArgument
from kaas.proto.launch import LaunchMetadata, Parameter, SignatureArgument


def tensor(name: str, role: Any, dtype: str, *shape: int | str, alignment: int = 32) -> Parameter:
    return Parameter(name=name, role=role, dtype=dtype, shape=shape, alignment=alignment)


def signature(*arguments: tuple[str, Any, str]) -> tuple[SignatureArgument, ...]:
    return tuple(SignatureArgument(name=name, kind=kind, dtype=dtype) for name, kind, dtype in arguments)


def plan(
    parameters: tuple[Parameter, ...], arguments: tuple[SignatureArgument, ...] | None = None
) -> LaunchPlan:
    if arguments is None:
        arguments = signature(
            *((p.name, "scalar" if p.role == "scalar" else "pointer", p.dtype) for p in parameters)
        )
    return LaunchPlan(
        LaunchMetadata(
            entry="k", block_count=1, dynamic_ub_bytes=0, parameters=parameters, signature=arguments
        )
    )


GEMM = (
    tensor("a", "in", "bf16", "m", 64),
    tensor("b", "in", "bf16", 32, 64),
    tensor("d", "out", "fp32", "m", 32),
)


def gemm() -> LaunchPlan:
    return plan(GEMM)


def gemm_tensors(m: int = 16) -> list[Any]:
    return [
        torch.zeros(m, 64, dtype=torch.bfloat16),
        torch.zeros(32, 64, dtype=torch.bfloat16),
        torch.zeros(m, 32),
    ]


def packed(plan: LaunchPlan, *arguments: Any) -> bytes:
    block = plan.pack(arguments, "cpu")
    assert block is not None
    return block.raw[: plan.size]


def refusal(plan: LaunchPlan, *arguments: Any, place: str = "cpu") -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        plan.pack(arguments, place)
    return caught.value


def test_pointers_scalars_and_symbols_lie_at_their_natural_alignment() -> None:
    kernel = plan(
        (tensor("x", "in", "fp32", "n"), tensor("s", "scalar", "int32"), tensor("y", "out", "fp32", "n")),
        signature(
            ("s", "scalar", "int32"),
            ("y", "pointer", "fp32"),
            ("n", "symbol", "int32"),
            ("x", "pointer", "fp32"),
        ),
    )
    x, y = torch.zeros(5), torch.zeros(5)
    assert packed(kernel, x, -7, y) == struct.pack("<i4xQi4xQ", -7, y.data_ptr(), 5, x.data_ptr())


def test_the_block_is_padded_to_eight_bytes() -> None:
    kernel = plan(
        (tensor("y", "out", "fp32", 4), tensor("h", "scalar", "fp16"), tensor("q", "scalar", "int64")),
        signature(
            ("h", "scalar", "fp16"),
            ("q", "scalar", "int64"),
            ("y", "pointer", "fp32"),
            ("h", "scalar", "fp16"),
        ),
    )
    y = torch.zeros(4)
    assert packed(kernel, y, 1.5, 2**40) == struct.pack("<e6xqQe6x", 1.5, 2**40, y.data_ptr(), 1.5)


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (-2.5, 0xC020), (1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82), (float("inf"), 0x7F80)],
)
def test_a_bf16_scalar_is_rounded_to_nearest_even(value: float, bits: int) -> None:
    kernel = plan((tensor("y", "out", "fp32", 1), tensor("s", "scalar", "bf16")))
    assert struct.unpack_from("<H", packed(kernel, torch.zeros(1), value), 8)[0] == bits
    assert int(torch.tensor(value).to(torch.bfloat16).view(torch.int16)) & 0xFFFF == bits


def test_a_bf16_nan_stays_a_nan() -> None:
    kernel = plan((tensor("y", "out", "fp32", 1), tensor("s", "scalar", "bf16")))
    (bits,) = struct.unpack_from("<H", packed(kernel, torch.zeros(1), float("nan")), 8)
    assert bits & 0x7F80 == 0x7F80
    assert bits & 0x7F


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), np.int64(3), np.float64(3)])
def test_python_and_numpy_numbers_are_float_scalars(value: Any) -> None:
    kernel = plan((tensor("y", "out", "fp32", 1), tensor("alpha", "scalar", "fp32")))
    assert struct.unpack_from("<f", packed(kernel, torch.zeros(1), value), 8)[0] == 3.0


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("fp32", True),
        ("fp32", "1"),
        ("fp32", None),
        ("fp32", 1e39),
        ("fp32", torch.tensor(1.0)),
        ("fp32", np.ones(1, np.float32)),
        ("fp16", 70000.0),
        ("int32", 2**31),
        ("int32", -(2**31) - 1),
        ("int32", 1.0),
        ("int32", True),
        ("int32", torch.tensor(1)),
        ("int64", 2**63),
    ],
)
def test_a_scalar_that_does_not_fit_is_refused_by_name(dtype: str, value: Any) -> None:
    error = refusal(
        plan((tensor("y", "out", "fp32", 1), tensor("s", "scalar", dtype))), torch.zeros(1), value
    )
    assert error.details["argument"] == "s"
    assert dtype in error.details["expected"]


@pytest.mark.parametrize("value", [3.0, -3.5, 2.5000001, 1e38, float("inf"), float("-inf"), float("nan")])
def test_a_scalar_beyond_its_range_is_refused_with_the_range(value: float) -> None:
    scale = Parameter(name="s", role="scalar", dtype="fp32", largest=2.5)
    kernel = plan((scale, tensor("y", "out", "fp32", 8)))
    error = refusal(kernel, value, torch.zeros(8))
    assert error.details["argument"] == "s"
    assert error.details["expected"] == "a number from -2.5 to 2.5"
    for legal in (-2.5, 0, 2.5, np.float32(1.0)):
        assert struct.unpack_from("<f", packed(kernel, legal, torch.zeros(8))) == (legal,)


def spec_of(family: str, **fields: Any) -> KernelSpec:
    return family_named(family).spec_type(**fields)


@pytest.mark.parametrize(
    "spec",
    [
        spec_of("mla_decode", heads=16),
        spec_of("mla_decode", heads=16, split=64),
        spec_of("mla_prefill"),
        spec_of("mla_sparse_decode", topk=512),
        spec_of("mla_sparse_prefill", topk=512),
    ],
    ids=lambda spec: spec.family,
)
@pytest.mark.parametrize("scale", [1e38, float("inf"), float("nan"), -1e10])
def test_a_scale_that_would_make_scores_infinite_is_refused(spec: KernelSpec, scale: float) -> None:
    parameters = family_named(spec.family).parameters(spec)
    scalar = next(one for one in parameters if one.name == "softmax_scale")
    error = refusal(plan((scalar, tensor("y", "out", "fp32", 8))), scale, torch.zeros(8))
    assert error.details["argument"] == "softmax_scale"
    assert "from -4.29497e+09 to 4.29497e+09" in error.message


@pytest.mark.parametrize("parts", [1, 4])
def test_no_rows_are_no_fault_where_cores_share_rows(parts: int) -> None:
    spec = spec_of("topk_select", topk=8, end=True, output_idx_offset=True, nan_flags=True, parts=parts)
    parameters = family_named("topk_select").parameters(spec)
    extents = {"rows": 0, "vocab": 72}
    host = {"bf16": torch.bfloat16, "int32": torch.int32, "int16": torch.int16}
    arguments = [
        1
        if one.role == "scalar"
        else torch.zeros([extents.get(str(extent), extent) for extent in one.shape], dtype=host[one.dtype])
        for one in parameters
    ]
    block = plan(parameters).pack(arguments, "cpu")
    assert (block is None) == (parts == 1)  # the exchange is there to be written


def test_numpy_arrays_and_torch_tensors_are_taken_alike() -> None:
    a = np.zeros((16, 64), ml_dtypes.bfloat16)
    b = torch.zeros(32, 64, dtype=torch.bfloat16)
    d = np.zeros((16, 32), np.float32)
    kernel = gemm()
    assert packed(kernel, a, b, d) == struct.pack("<QQQ", a.ctypes.data, b.data_ptr(), d.ctypes.data)
    assert kernel.outputs((a, b, d)) is d


def test_the_number_of_arguments_is_checked_with_their_names() -> None:
    error = refusal(gemm(), *gemm_tensors()[:2])
    assert "2 arguments given; expected 3: a, b, d" in error.message


@pytest.mark.parametrize(
    ("position", "replacement", "said"),
    [
        (0, torch.zeros(16, 64), ("'a'", "fp32", "bf16")),
        (0, np.zeros((16, 64), np.uint16), ("'a'", "uint16", "ml_dtypes.bfloat16")),
        (0, torch.zeros(16, 65, dtype=torch.bfloat16), ("'a'", "[16, 65]", "[m=16, 64]")),
        (0, torch.zeros(64, dtype=torch.bfloat16), ("'a'", "[64]", "[m, 64]")),
        (1, torch.zeros(31, 64, dtype=torch.bfloat16), ("'b'", "[31, 64]", "[32, 64]")),
        (2, torch.zeros(17, 32), ("'d'", "[17, 32]", "[m=16, 32]")),
        (0, torch.zeros(64, 16, dtype=torch.bfloat16).T, ("'a'", "contiguous")),
        (0, torch.zeros(16 * 64 + 1, dtype=torch.bfloat16)[1:].view(16, 64), ("'a'", "32", "aligned")),
        (0, torch.zeros(16, 64, dtype=torch.bfloat16, device="meta"), ("'a'", "meta", "cpu")),
        (0, [[0.0]], ("'a'", "list", "torch tensor")),
        (0, None, ("'a'", "None", "torch tensor")),
        (0, 3, ("'a'", "number 3", "torch tensor")),
        (0, np.float32(3), ("'a'", "float32", "torch tensor")),
        (2, np.zeros((16, 32), np.float32, order="F"), ("'d'", "contiguous")),
        (2, np.zeros((16, 32), ">f4"), ("'d'", "byte-swapped")),
        (2, np.ma.zeros((16, 32), np.float32), ("'d'", "mask", "dense")),
        (0, torch._neg_view(torch.zeros(16, 64, dtype=torch.bfloat16)), ("'a'", "resolve_neg", "dense")),
        (0, 10**400, ("'a'", "401 digits", "torch tensor")),
        (0, torch.zeros(16, 64, dtype=torch.bfloat16).to_sparse(), ("'a'", "no memory", "dense")),
    ],
)
def test_a_wrong_tensor_is_refused_with_its_name_and_what_is_expected(
    position: int, replacement: Any, said: tuple[str, ...]
) -> None:
    arguments = gemm_tensors()
    arguments[position] = replacement
    error = refusal(gemm(), *arguments)
    for part in said:
        assert part in error.message
    assert error.details["argument"] in "abd"
    assert error.details["expected"]


def test_a_misaligned_numpy_array_is_refused() -> None:
    arguments = gemm_tensors()
    arguments[2] = np.zeros(16 * 32 + 1, np.float32)[1:].reshape(16, 32)
    assert "aligned" in refusal(gemm(), *arguments).message


def test_an_array_that_may_not_be_written_is_no_output_but_a_fine_input() -> None:
    frozen = np.zeros((16, 32), np.float32)
    frozen.flags.writeable = False
    arguments = gemm_tensors()
    assert "read-only" in refusal(gemm(), *arguments[:2], frozen).message
    copy = plan((tensor("x", "in", "fp32", 16, 32), tensor("y", "out", "fp32", 16, 32)))
    assert packed(copy, frozen, torch.zeros(16, 32))


def test_tensors_elsewhere_are_refused() -> None:
    error = refusal(gemm(), *gemm_tensors(), place="npu:0")
    assert "is on cpu; expected: a tensor on npu:0" in error.message


def test_an_output_that_shares_memory_is_refused() -> None:
    add = plan((tensor("x", "in", "fp32", "n"), tensor("y", "out", "fp32", "n")))
    memory = torch.zeros(64)
    error = refusal(add, memory[:32], memory[16:48])
    assert "'y' shares memory with argument 'x'" in error.message
    assert packed(add, memory[:32], memory[32:])


def test_inputs_may_share_memory() -> None:
    add = plan((tensor("x", "in", "fp32", 8), tensor("y", "in", "fp32", 8), tensor("z", "out", "fp32", 8)))
    x = torch.zeros(8)
    assert packed(add, x, x, torch.zeros(8))


def test_nothing_is_launched_for_empty_outputs() -> None:
    assert gemm().pack(gemm_tensors(0), "cpu") is None


def test_an_empty_output_is_still_checked() -> None:
    arguments = gemm_tensors(0)
    arguments[2] = torch.zeros(0, 33)
    assert "[0, 33]" in refusal(gemm(), *arguments).message


def test_an_empty_input_of_a_whole_output_is_refused() -> None:
    total = plan((tensor("x", "in", "fp32", "n"), tensor("y", "out", "fp32", 8)))
    assert "'x' is empty" in refusal(total, torch.zeros(0), torch.zeros(8)).message


def test_a_dimension_beyond_the_entrys_integer_is_refused() -> None:
    kernel = plan(
        (tensor("x", "in", "fp32", "n", 0), tensor("y", "out", "fp32", 1)),
        signature(("x", "pointer", "fp32"), ("y", "pointer", "fp32"), ("n", "symbol", "int32")),
    )
    x = np.zeros((2**31, 0), np.float32)
    assert refusal(kernel, x, torch.zeros(1)).details["argument"] == "x"


def test_metadata_that_contradicts_itself_is_damage() -> None:
    with pytest.raises(ArtifactDamaged, match="launch metadata"):
        plan((tensor("y", "out", "fp32", 1),), signature(("z", "pointer", "fp32")))


def test_several_outputs_come_back_as_a_tuple() -> None:
    kernel = plan(
        (tensor("r", "inout", "fp32", 2), tensor("x", "in", "fp32", 2), tensor("y", "out", "fp32", 2))
    )
    r, x, y = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    assert kernel.outputs((r, x, y)) == (r, y)


def test_threads_do_not_share_an_argument_block() -> None:
    kernel = gemm()
    mine = kernel.pack(gemm_tensors(), "cpu")
    blocks: list[Any] = []
    thread = threading.Thread(target=lambda: blocks.append(kernel.pack(gemm_tensors(), "cpu")))
    thread.start()
    thread.join()
    assert blocks[0] is not None
    assert blocks[0] is not mine


def test_subclasses_of_tensors_are_tensors() -> None:
    arguments = gemm_tensors()
    arguments[1] = torch.nn.Parameter(arguments[1])
    assert packed(gemm(), *arguments)


def test_an_output_that_autograd_watches_is_refused() -> None:
    arguments = gemm_tensors()
    arguments[2].requires_grad_()
    assert "gradient" in refusal(gemm(), *arguments).message


def test_a_tensor_without_storage_is_refused() -> None:
    arguments = gemm_tensors()
    arguments[0].untyped_storage().resize_(0)
    assert "no memory" in refusal(gemm(), *arguments).message
