"""Reference of ep_expand: one received record after the other, with the next row of every expert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.ep_records import take

if TYPE_CHECKING:
    from kaas.kernel_library.families.ep_expand import EpExpandSpec

PARTS = 128


def reference(spec: EpExpandSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All outputs; what nobody writes holds bytes 0xFF.

    ``expanded`` is the number of rows; ``received``, if there is one, that of the metadata's.
    """
    one, layout = spec.topology, spec.record
    records = _received(spec, inputs)
    ends = inputs["psum_num_recv_tokens_per_expert"].tolist()
    payload = take(records, 0, layout.payload_words * 4, torch.uint8)
    outputs: dict[str, Any] = {}
    if spec.cached:
        rows = inputs["recv_src_metadata"][: len(records), : one.topk].long()
    else:
        experts = take(records, layout.experts, one.topk, torch.int32)
        local = experts.long() - inputs["rank"] * one.experts_per_rank
        local = torch.where((local >= 0) & (local < one.experts_per_rank), local, -1)
        rows = _rows(spec, local, ends)
        last = torch.tensor(
            [max((k for k, e in enumerate(row) if e >= 0), default=-1) for row in local.tolist()]
        )
        source = take(records, layout.source, 1, torch.int32).long()
        metadata = torch.full((inputs.get("received", len(rows)), one.topk + 2), -1)
        metadata[: len(rows)] = torch.cat((rows, source, last.view(-1, 1)), 1)
        outputs["recv_src_metadata"] = metadata.int()
        outputs["expert_counts"] = _counts_by_part(spec, local)

    moved = {"recv_x": payload}
    if spec.scale_packs:
        moved["recv_x_scales"] = take(records, layout.scales, spec.scale_packs * 2, torch.uint8)
    kinds = {"recv_x": _payload_dtype(spec), "recv_x_scales": torch.int16}
    for name, values in moved.items():
        placed = _placed(spec, inputs["expanded"], rows, ends, [values] * one.topk)
        outputs[name] = placed.view(kinds[name])
    if spec.weights:
        weights = take(records, layout.weights, one.topk, torch.float32)
        columns = [weights[:, k : k + 1].contiguous().view(torch.uint8) for k in range(one.topk)]
        outputs["recv_topk_weights"] = (
            _placed(spec, inputs["expanded"], rows, ends, columns).view(torch.float32).flatten()
        )
    return outputs


def _payload_dtype(spec: EpExpandSpec) -> torch.dtype:
    return torch.bfloat16 if spec.dtype == "bf16" else torch.float8_e4m3fn


def _received(spec: EpExpandSpec, inputs: Mapping[str, Any]) -> torch.Tensor:
    """The received records as bytes, rank by rank."""
    sums = [0, *inputs["psum_num_recv_tokens_per_rank"].tolist()]
    runs = [inputs["recv"][rank, : sums[rank + 1] - sums[rank]] for rank in range(spec.topology.ranks)]
    words = torch.cat(runs)
    return words.contiguous().view(torch.uint8).view(len(words), spec.record.words * 4)


def _rows(spec: EpExpandSpec, local: torch.Tensor, ends: list[int]) -> torch.Tensor:
    alignment = spec.topology.expert_alignment
    following = [-(-end // alignment) * alignment for end in [0, *ends[:-1]]]
    rows = torch.full(local.shape, -1)
    for i, row in enumerate(local.tolist()):
        for k, expert in enumerate(row):
            if expert >= 0:
                rows[i, k] = following[expert]
                following[expert] += 1
    return rows


def _counts_by_part(spec: EpExpandSpec, local: torch.Tensor) -> torch.Tensor:
    counts = torch.full((PARTS, spec.topology.experts_per_rank), -1)
    for part, rows in enumerate(local.split(max(-(-len(local) // PARTS), 1))):
        if len(rows):
            counts[part] = torch.bincount(rows[rows >= 0], minlength=spec.topology.experts_per_rank)
    return counts.int()


def _placed(
    spec: EpExpandSpec, expanded: int, rows: torch.Tensor, ends: list[int], columns: list[torch.Tensor]
) -> torch.Tensor:
    """Bytes by row: ``columns[k]`` of every record at the row of its choice k."""
    out = torch.full((expanded, columns[0].shape[1]), 0xFF, dtype=torch.uint8)
    if spec.zero_padding:
        alignment = spec.topology.expert_alignment
        for end in ends:
            out[end : -(-end // alignment) * alignment] = 0
    for k, values in enumerate(columns):
        there = (rows[:, k] >= 0) & (rows[:, k] < expanded)
        out[rows[there, k]] = values[there]
    return out
