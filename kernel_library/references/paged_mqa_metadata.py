"""Reference of paged_mqa_metadata: every split of every request in a list, and where the parts cut it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.request_lengths import lengths_of, requests_of

if TYPE_CHECKING:
    from kaas.kernel_library.families.paged_mqa_metadata import PagedMqaMetadataSpec

SPLIT_KEYS = 512
TILE_ROWS = 64


def reference(spec: PagedMqaMetadataSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``metadata`` [boundaries, 2] int32; ``inputs`` also say how many ``boundaries`` there are."""
    lengths = lengths_of(inputs, spec.next_n, 2**30)
    places: list[tuple[int, int]] = []
    for first, count in requests_of(inputs, spec.next_n):
        tiles = -(-count // (TILE_ROWS // spec.heads))
        splits = -(-max(lengths[first : first + count]) // SPLIT_KEYS)
        places += [(first, split) for split in range(splits) for _ in range(tiles)]
    parts = inputs["boundaries"] - 1
    each, more = divmod(len(places), parts)
    cuts = [part * each + min(part, more) for part in range(parts + 1)]
    found = [places[cut] if cut < len(places) else (len(lengths), 0) for cut in cuts]
    found[0] = (0, 0)
    return {"metadata": torch.tensor(found, dtype=torch.int32)}
