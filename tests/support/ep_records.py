"""Inputs of the expert-parallel kernels: routing, tokens, and what a rank receives from all others."""

from __future__ import annotations

from typing import Any

import torch
from support.kernel_checks import EXACT, check_kernel, compare_output, reference_of, tensor_dtype

from kaas.kernel_library.families.ep_expand import EpExpandSpec
from kaas.kernel_library.families.ep_layout import EpLayoutSpec
from kaas.kernel_library.families.ep_pack import EpPackSpec
from kaas.kernel_library.families.ep_prefix import EpPrefixSpec
from kaas.kernel_library.routing.expert_parallel import ExpertParallelTopology
from kaas.kernel_library.spec import KernelSpec


def drawn_routing(
    topology: ExpertParallelTopology,
    tokens: int,
    generator: torch.Generator,
    *,
    dtype: str = "int64",
    masked: float = 0.2,
) -> torch.Tensor:
    """topk_idx with different experts in a row, some of them -1."""
    scores = torch.rand((tokens, topology.experts), generator=generator)
    chosen = scores.topk(topology.topk, dim=1).indices
    chosen[torch.rand(chosen.shape, generator=generator) < masked] = -1
    return chosen.to(tensor_dtype(dtype))


def raw_rows(rows: int, columns: int, dtype: str, generator: torch.Generator) -> torch.Tensor:
    """Any bits at all, NaN payloads included."""
    kind = tensor_dtype(dtype)
    size = (rows, columns * kind.itemsize)
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=generator).view(kind)


def pack_inputs(
    spec: EpPackSpec, topk_idx: torch.Tensor, rank: int, generator: torch.Generator
) -> dict[str, Any]:
    """Inputs of a pack of raw rows, with the slots that ep_layout gives."""
    layout = EpLayoutSpec(topology=spec.topology, index_dtype=spec.index_dtype)
    tokens = len(topk_idx)
    inputs: dict[str, Any] = {
        "x": raw_rows(tokens, spec.hidden, spec.dtype, generator),
        "topk_idx": topk_idx,
        "rank": rank,
        "dst_slot": reference_of(layout, {"topk_idx": topk_idx, "rank": rank})["dst_slot"],
    }
    if spec.scale_packs:
        inputs["x_scales"] = raw_rows(tokens, spec.scale_packs, "e8m0x2", generator)
    if spec.weights:
        inputs["topk_weights"] = torch.rand((tokens, spec.topology.topk), generator=generator)
    return inputs


def expand_inputs(
    spec: EpExpandSpec,
    tokens: list[int],
    rank: int,
    generator: torch.Generator,
    *,
    spare: int = 0,
    routing: list[torch.Tensor] | None = None,
) -> dict[str, Any]:
    """What ``rank`` receives when rank r has ``tokens[r]`` tokens; ``expanded`` and ``received`` rows fit.

    ``routing`` replaces the drawn topk_idx of all ranks. Slots that nobody sends to hold any bits.
    """
    one = spec.topology
    pack = EpPackSpec(
        topology=one,
        hidden=spec.hidden,
        dtype=spec.dtype,
        scale_packs=spec.scale_packs,
        weights=spec.weights,
        cached=spec.cached,
    )
    shape = (one.ranks * one.max_tokens_per_rank, spec.record.words)
    recv = raw_rows(*shape, "int32", generator).view(one.ranks, one.max_tokens_per_rank, -1)
    if routing is None:
        routing = [drawn_routing(one, count, generator) for count in tokens]
    from_rank, by_expert = [], []
    for sender, topk_idx in enumerate(routing):
        inputs = pack_inputs(pack, topk_idx, sender, generator)
        layout = reference_of(EpLayoutSpec(topology=one), {"topk_idx": topk_idx, "rank": sender})
        count = int(layout["num_tokens_per_rank"][rank])
        recv[sender, :count] = reference_of(pack, inputs)["send"][rank, :count]
        from_rank.append(count)
        own = slice(rank * one.experts_per_rank, (rank + 1) * one.experts_per_rank)
        by_expert.append(layout["num_tokens_per_expert"][own])
    sums = reference_of(
        EpPrefixSpec(topology=one),
        {
            "recv_tokens_per_rank": torch.tensor(from_rank, dtype=torch.int32),
            "recv_tokens_per_expert": torch.stack(by_expert),
        },
    )
    ends = sums["psum_num_recv_tokens_per_expert"]
    alignment = one.expert_alignment
    made = {
        "recv": recv,
        "psum_num_recv_tokens_per_rank": sums["psum_num_recv_tokens_per_rank"],
        "psum_num_recv_tokens_per_expert": ends,
        "expanded": -(-int(ends[-1]) // alignment) * alignment + spare,
    }
    if spec.cached:
        made["recv_src_metadata"] = _metadata(spec, routing, rank, ends, sum(from_rank))
    else:
        made["rank"] = rank
    return made


def _metadata(
    spec: EpExpandSpec, routing: list[torch.Tensor], rank: int, ends: torch.Tensor, received: int
) -> torch.Tensor:
    """recv_src_metadata of a dispatch that was not cached."""
    full = EpExpandSpec(topology=spec.topology, hidden=32, weights=False)
    inputs = expand_inputs(
        full, [len(one) for one in routing], rank, torch.Generator().manual_seed(9), routing=routing
    )
    metadata: torch.Tensor = reference_of(full, inputs)["recv_src_metadata"]
    assert len(metadata) == received
    return metadata


def expand_sizes(inputs: dict[str, Any]) -> dict[str, int]:
    """Extents that no input has."""
    received = int(inputs["psum_num_recv_tokens_per_rank"][-1])
    return {"received": received, "expanded": inputs["expanded"]}


def check_on_parts(
    spec: KernelSpec, inputs: dict[str, Any], sizes: dict[str, int] | None = None
) -> dict[str, torch.Tensor]:
    """Check ``spec`` on parts with 8, 28, 32 and 36 cube cores; the same bits. Returns one part's outputs."""
    results = [check_kernel(spec, cores, inputs, sizes=sizes) for cores in (8, 28, 32, 36)]
    for other in results[1:]:
        for name, tensor in other.items():
            compare_output(name, tensor, results[0][name], EXACT)
    return results[0]
