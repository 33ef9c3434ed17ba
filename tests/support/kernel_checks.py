"""One kernel against its reference: in eager order, under adversarial schedules, and checked for races."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from support.twin_kernels import TwinKernel, aligned, calc_diff, in_every_schedule, kernel

from kaas.kernel_library.registry import family_named
from kaas.kernel_library.spec import KernelSpec
from kaas.proto.dtypes import ELEMENT_TYPES
from kaas.proto.extents import Extent, formula_of
from kaas.proto.launch import Parameter


@dataclass(frozen=True)
class Exact:
    """Bit by bit, after one rounding of the reference to the output's dtype; any NaN equals any NaN."""


@dataclass(frozen=True)
class Close:
    """|actual - expected| <= absolute + relative * |expected|; infinities and NaN must agree."""

    relative: float = 0.0
    absolute: float = 0.0


@dataclass(frozen=True)
class CalcDiff:
    """1 - 2 sum(xy) / sum(x^2 + y^2) below ``limit``."""

    limit: float


Comparison = Exact | Close | CalcDiff
EXACT = Exact()
EQUAL = Close()
"""The same values: the sign of a zero depends on the order of a sum."""


def reference_of(spec: KernelSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The expected outputs by parameter name."""
    module = importlib.import_module(f"kaas.kernel_library.references.{spec.family}")
    expected: dict[str, Any] = module.reference(spec, inputs)
    return expected


def check_kernel(
    spec: KernelSpec,
    cores: int,
    inputs: Mapping[str, Any],
    compare: Comparison | Mapping[str, Comparison] = EXACT,
    *,
    sizes: Mapping[str, int] | None = None,
    expected: Mapping[str, Any] | None = None,
) -> dict[str, torch.Tensor]:
    """Run ``spec``, built for a part with ``cores`` cube cores, on ``inputs`` by parameter name.

    Runs in every schedule. Outputs start as bytes 0xFF, so that what nobody writes shows. ``sizes`` binds
    dynamic extents that no input has. ``expected`` replaces the family's reference. Returns the last outputs.
    """
    built = kernel(spec, cores)
    wanted = reference_of(spec, inputs) if expected is None else expected
    outputs: dict[str, torch.Tensor] = {}
    in_every_schedule(lambda: outputs.update(run_once(built, spec, inputs, wanted, compare, sizes=sizes)))
    return outputs


def run_once(
    built: TwinKernel,
    spec: KernelSpec,
    inputs: Mapping[str, Any],
    expected: Mapping[str, Any],
    compare: Comparison | Mapping[str, Comparison] = EXACT,
    *,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, torch.Tensor]:
    """One launch of a kernel made from ``spec`` in the schedule that is set, compared with ``expected``.

    Returns the outputs. Raises DeviceError when the twin finds a fault, AssertionError when one differs.
    """
    parameters = family_named(spec.family).parameters(spec)
    written = [parameter for parameter in parameters if parameter.role in ("out", "inout")]
    assert {parameter.name for parameter in written} == expected.keys()
    extents = _bound_extents(parameters, inputs, sizes or {})
    arguments = [_argument(parameter, inputs, extents) for parameter in parameters]
    before = [one.clone() if isinstance(one, torch.Tensor) else one for one in arguments]
    built.launch(*arguments)
    outputs: dict[str, torch.Tensor] = {}
    for parameter, argument, old in zip(parameters, arguments, before, strict=True):
        if parameter in written:
            how = compare[parameter.name] if isinstance(compare, Mapping) else compare
            compare_output(parameter.name, argument, expected[parameter.name], how)
            outputs[parameter.name] = argument
        elif isinstance(argument, torch.Tensor):
            assert _bytes_of(argument).equal(_bytes_of(old)), f"{parameter.name} was written"
    return outputs


def compare_output(name: str, actual: torch.Tensor, expected: torch.Tensor, how: Comparison) -> None:
    """Assert that an output agrees with its reference."""
    assert actual.shape == expected.shape, f"{name}: shape {expected.shape} expected"
    if isinstance(how, CalcDiff):
        assert actual.double().isfinite().all(), f"{name} has values that are not finite"
        assert calc_diff(actual, expected) < how.limit, f"{name}: calc_diff {calc_diff(actual, expected)}"
        return
    if isinstance(how, Exact):
        expected = expected.to(actual.dtype)
        same = (_integers(actual) == _integers(expected)) | (_is_nan(actual) & _is_nan(expected))
    else:
        x, y = actual.double(), expected.double()
        near = (x - y).abs() <= how.absolute + how.relative * y.abs()
        same = near | (x == y) | (x.isnan() & y.isnan())
    if not bool(same.all()):
        wrong = (~same).nonzero()
        first = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{name}: {len(wrong)} of {same.numel()} differ, the first at {first}: "
            f"{actual[first].item()!r} instead of {expected[first].item()!r}"
        )


def tensor_dtype(dtype: str) -> torch.dtype:
    """The torch dtype that the tests use for a parameter's: one that torch can compute with."""
    return getattr(torch, ELEMENT_TYPES[dtype].host_names[-1 if dtype in ("e2m1x2", "e8m0") else 0])


def _argument(parameter: Parameter, inputs: Mapping[str, Any], extents: Mapping[str, int]) -> Any:
    if parameter.name in inputs:
        given = inputs[parameter.name]
        if not isinstance(given, torch.Tensor):
            return given
        fresh = given.contiguous()
        return aligned(fresh.clone() if parameter.role == "inout" else fresh)
    assert parameter.role == "out", f"no input {parameter.name}"
    shape = [_value(extent, extents) for extent in parameter.shape]
    dtype = tensor_dtype(parameter.dtype)
    room = torch.full((*shape[:-1], shape[-1] * dtype.itemsize), 0xFF, dtype=torch.uint8)
    return aligned(room).view(dtype)


def _bound_extents(
    parameters: tuple[Parameter, ...], inputs: Mapping[str, Any], sizes: Mapping[str, int]
) -> dict[str, int]:
    extents = dict(sizes)
    for parameter in parameters:
        given = inputs.get(parameter.name)
        if isinstance(given, torch.Tensor):
            for extent, size in zip(parameter.shape, given.shape, strict=True):
                if isinstance(extent, str) and formula_of(extent) is None:
                    extents.setdefault(extent, size)
    return extents


def _value(extent: Extent, extents: Mapping[str, int]) -> int:
    if isinstance(extent, int):
        return extent
    formula = formula_of(extent)
    return formula.value(extents[formula.symbol]) if formula else extents[extent]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dtype.is_floating_point:
        return tensor
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    return tensor.contiguous().view(kind)


def _is_nan(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dtype.is_floating_point:
        return torch.zeros(tensor.shape, dtype=torch.bool)
    return tensor.double().isnan()
