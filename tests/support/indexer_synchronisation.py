"""The indexer's scores with small inputs whose loops run longer than their rings have slots."""

from __future__ import annotations

from typing import Any

import torch
from support.indexer_inputs import window_inputs
from support.indexer_pages import paged_inputs

from kaas.kernel_library.families.mqa_logits import MqaLogitsSpec
from kaas.kernel_library.families.paged_mqa_logits import PagedMqaLogitsSpec

LOGITS = MqaLogitsSpec(heads=64, head_dim=64, clean=True)
LOGITS_ROOM = {"columns": 300}
PAGED = PagedMqaLogitsSpec(heads=64, head_dim=64, layout="tiles")


def logits_inputs(_: torch.Generator) -> dict[str, Any]:
    """Four cores have three blocks of eight queries each.

    The first one is more steps than there are slots, or nothing but columns to fill; the others are short.
    """
    starts = [200 + token % 41 for token in range(100)]
    lengths = [60 + token for token in range(100)]
    lengths[0:24:8] = [1500] * 3
    lengths[24:32] = [0] * 8
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    return window_inputs(LOGITS, 1800, starts, ends, integers=True, columns=LOGITS_ROOM["columns"])


def paged_logits_inputs(_: torch.Generator) -> dict[str, Any]:
    """Requests of more queries than a tile, whose keys are more steps than slots, and many short ones."""
    sizes, lengths = [3, 9, *[1] * 12, 2], [1500, 600, *[100] * 12, 900]
    return paged_inputs(PAGED, sizes, lengths, integers=True, boundaries=5)
