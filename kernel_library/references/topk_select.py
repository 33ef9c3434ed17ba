"""Reference of topk_select: a stable descending sort of every row by the values' bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.topk_select import TopkSelectSpec

MARK = 0x3F3F3F3F


def reference(spec: TopkSelectSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``output_idx`` int32, and ``output_val`` bf16 and ``nan_found`` int32 where the spec has them.

    The workspace is as it was given: what it holds afterwards depends on the number of cores.
    """
    rows, vocab = inputs["input"].shape
    index_fill = int(inputs["idx_oob_fill_value"])
    value_fill = float(inputs.get("value_oob_fill_value", 0.0))
    indices = torch.full((rows, spec.topk), index_fill, dtype=torch.int32)
    values = torch.full((rows, spec.topk), value_fill, dtype=torch.float32).to(torch.bfloat16)
    found = torch.zeros(rows, dtype=torch.int32)
    for row in range(rows):
        end = vocab if not spec.end else min(max(int(inputs["end"][row]), 0), vocab)
        taken = inputs["input"][row, :end]
        if taken.isnan().any():
            indices[row] = MARK
            found[row] = 1
            continue
        bits = taken.contiguous().view(torch.int16).int()
        keys = torch.where(bits < 0, bits ^ 0x7FFF, bits)
        best = torch.sort(keys, descending=True, stable=True).indices[: spec.topk].sort().values
        offset = int(inputs["output_idx_offset"][row]) if spec.output_idx_offset else 0
        indices[row, : len(best)] = (best + offset).to(torch.int32)
        values[row, : len(best)] = taken[best]
    results = {"output_idx": indices}
    if spec.parts > 1:
        results["exchange"] = inputs["exchange"]
    if spec.return_value:
        results["output_val"] = values
    if spec.nan_flags:
        results["nan_found"] = found
    return results
