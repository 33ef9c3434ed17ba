"""References: what the numeric tests compare kernels with takes everything that a kernel takes."""

from __future__ import annotations

import torch

from kaas.kernel_library.families.fused_mapping import FusedMappingSpec
from kaas.kernel_library.families.lossless_block_cast import LosslessBlockCastSpec
from kaas.kernel_library.families.scale_layout import ScaleLayoutSpec
from kaas.kernel_library.references import fused_mapping, lossless_block_cast, scale_layout


def test_choices_without_room_are_in_no_map_of_places() -> None:
    spec = FusedMappingSpec(experts=2, topk=2, index_dtype="int32")
    choices = torch.tensor([[0, 1], [1, 0], [0, 1]], dtype=torch.int32)
    maps = fused_mapping.reference(spec, {"topk_idx": choices, "expanded": 4})
    assert maps["pos_to_expert"].tolist() == [0, 0, 0, 1]
    assert maps["pos_to_token_topk"].tolist() == [0, 3, 4, 1]
    assert maps["token_topk_to_pos"].tolist() == [[0, 3], [4, 1], [2, 5]]


def test_no_batches_of_scales_make_no_pairs() -> None:
    spec = ScaleLayoutSpec(k=640, batched=True)
    pairs = scale_layout.reference(spec, {"scales": torch.ones((0, 7, 20)), "mn": 7})["pairs"]
    assert (pairs.shape, pairs.dtype) == ((0, 10, 7), torch.int16)


def test_no_tokens_are_cast_to_none() -> None:
    spec = LosslessBlockCastSpec(hidden=256, in_scales="e8m0x2", scale_dtype="e8m0x2")
    inputs = {
        "x": torch.empty((0, 128), dtype=torch.uint8),
        "x_scales": torch.empty((0, 4), dtype=torch.int16),
    }
    outputs = lossless_block_cast.reference(spec, inputs)
    assert outputs["out"].shape == (0, 256)
    assert 0 in outputs["out_scales"].shape
