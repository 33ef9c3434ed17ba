"""Reference of scale_layout: exact to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kaas.kernel_library.families.scale_layout import ScaleLayoutSpec

ALIGNMENT = 256


def power_bytes(scales: Tensor) -> Tensor:
    """e8m0 bytes of fp32 scales: 0 of zero, 255 of what is no power of two."""
    mantissa, exponent = torch.frexp(scales.double())
    is_power = (mantissa == 0.5) & scales.isfinite()
    bytes_ = torch.where(is_power, exponent + 126, 255)
    return torch.where((scales == 0) & ~torch.signbit(scales), 0, bytes_).to(torch.uint8)


def packed(bytes_: Tensor) -> Tensor:
    """e8m0 bytes [rows, blocks] as int16 pairs [ceil(blocks/2), rows]."""
    rows, blocks = bytes_.shape
    even = torch.zeros((rows, blocks + blocks % 2), dtype=torch.uint8)
    even[:, :blocks] = bytes_
    return even.view(torch.int16).T.contiguous()


def _spans(ends: Tensor, granularity: int) -> list[tuple[int, int]]:
    """Elements of each group along its axis."""
    spans, start = [], 0
    for end in ends.tolist():
        spans.append((-(-start // granularity), max(-(-end // granularity), -(-start // granularity))))
        start = -(-end // ALIGNMENT) * ALIGNMENT
    return spans


def _kept(count: int, spans: list[tuple[int, int]]) -> Tensor:
    inside = torch.zeros(count, dtype=torch.bool)
    for first, last in spans:
        inside[first:last] = True
    return inside


def _matrix(spec: ScaleLayoutSpec, scales: Tensor, ends: Tensor | None, mn: int) -> Tensor:
    by_row = scales if spec.major == "k" else scales.T.contiguous()
    if ends is not None and spec.groups == "m":
        inside = _kept(by_row.shape[0], _spans(ends, spec.gran_mn))
        by_row = torch.where(inside[:, None], by_row, torch.zeros_like(by_row))
    elif ends is not None:
        inside = _kept(by_row.shape[1], _spans(ends, 32 if spec.source == "fp32" else 64))
        by_row = torch.where(inside, by_row, torch.zeros_like(by_row))
    repeated = by_row.repeat_interleave(spec.gran_mn, 0)[:mn]
    return packed(power_bytes(repeated)) if spec.source == "fp32" else repeated.T.contiguous()


def reference(spec: ScaleLayoutSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``pairs``; ``inputs["mn"]`` says how many rows the operand has if the spec does not."""
    scales, ends = inputs["scales"], inputs.get("grouped_layout")
    rows_axis = -2 if spec.major == "k" else -1
    mn = inputs.get("mn", scales.shape[rows_axis] * spec.gran_mn) if spec.mn == "dynamic" else spec.mn
    if spec.batched:
        whole = [_matrix(spec, one, ends, mn) for one in scales]
        # Without a batch a matrix of zeros says which shape one would have.
        shape = _matrix(spec, scales.new_zeros(scales.shape[1:]), ends, mn)
        return {"pairs": torch.stack(whole) if whole else shape.new_zeros((0, *shape.shape))}
    return {"pairs": _matrix(spec, scales, ends, mn)}
