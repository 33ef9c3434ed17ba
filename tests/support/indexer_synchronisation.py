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
    """Four cores have three blocks of eight queries each, of which every window crosses a step's end."""
    starts = [200 + token % 41 for token in range(100)]
    ends = [start + 60 + token % 130 for token, start in enumerate(starts)]
    return window_inputs(LOGITS, 420, starts, ends, integers=True, columns=LOGITS_ROOM["columns"])


def paged_logits_inputs(_: torch.Generator) -> dict[str, Any]:
    """Requests of more queries than a tile, whose keys are more steps than slots."""
    return paged_inputs(PAGED, [3, 9, 1, 2], [1500, 600, 2100, 900], integers=True, boundaries=5)
