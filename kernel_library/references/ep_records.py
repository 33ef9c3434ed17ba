"""Records of expert parallelism on the host: the parts of a token's record as raw bytes."""

from __future__ import annotations

import torch

from kaas.kernel_library.routing.expert_parallel import RecordLayout

WORD = 4


def raw_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The rows of a matrix as uint8 [rows, bytes of a row]."""
    width = tensor.shape[1] * tensor.element_size()
    return tensor.contiguous().view(torch.uint8).view(len(tensor), width)


def empty_records(count: int, layout: RecordLayout) -> torch.Tensor:
    """uint8 [count, bytes], every part as it is where there is nothing."""
    records = torch.zeros((count, layout.words * WORD), dtype=torch.uint8)
    if layout.experts >= 0:
        behind = layout.weights if layout.weights >= 0 else layout.source
        records[:, layout.experts * WORD : behind * WORD] = 0xFF
    return records


def put(records: torch.Tensor, word: int, values: torch.Tensor) -> None:
    """Write the rows of ``values`` from ``word`` on."""
    rows = raw_rows(values)
    records[:, word * WORD : word * WORD + rows.shape[1]] = rows


def take(records: torch.Tensor, word: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """``count`` elements of ``dtype`` of each record, from ``word`` on."""
    start = word * WORD
    return records[:, start : start + count * dtype.itemsize].contiguous().view(dtype)
