"""A group of ranks in one process: their kernels run on the twin, and torch moves what a network would.

Kernels are compiled once and shared by all ranks, which differ in their data and in the scalar ``rank`` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from support.kernel_checks import tensor_dtype
from support.twin_kernels import aligned, kernel

from kaas.kernel_library.families.ep_combine import EpCombineSpec
from kaas.kernel_library.families.ep_expand import EpExpandSpec
from kaas.kernel_library.families.ep_layout import EpLayoutSpec
from kaas.kernel_library.families.ep_pack import EpPackSpec
from kaas.kernel_library.families.ep_prefix import EpPrefixSpec
from kaas.kernel_library.families.grouped_gemm import GroupedGemmSpec
from kaas.kernel_library.families.reduce_fused import ReduceFusedSpec
from kaas.kernel_library.families.scale_layout import ScaleLayoutSpec
from kaas.kernel_library.families.swiglu import SwigluSpec
from kaas.kernel_library.registry import family_named
from kaas.kernel_library.routing.expert_parallel import ExpertParallelTopology, PayloadDtype
from kaas.kernel_library.spec import KernelSpec
from kaas.proto.extents import Extent, formula_of

Tensors = dict[str, torch.Tensor]


def launched(
    spec: KernelSpec, cores: int, inputs: Mapping[str, Any], sizes: Mapping[str, int] | None = None
) -> Tensors:
    """Outputs of one launch by name; bytes 0xFF where nothing is written. ``sizes`` as in check_kernel."""
    parameters = family_named(spec.family).parameters(spec)
    extents = dict(sizes or {})
    for parameter in parameters:
        if isinstance(inputs.get(parameter.name), torch.Tensor):
            for extent, size in zip(parameter.shape, inputs[parameter.name].shape, strict=True):
                if isinstance(extent, str) and formula_of(extent) is None:
                    extents.setdefault(extent, size)
    arguments: dict[str, Any] = {}
    for parameter in parameters:
        given = inputs.get(parameter.name)
        if given is None:
            shape = [_value(extent, extents) for extent in parameter.shape]
            dtype = tensor_dtype(parameter.dtype)
            room = torch.full((*shape[:-1], shape[-1] * dtype.itemsize), 0xFF, dtype=torch.uint8)
            given = aligned(room).view(dtype)
        elif isinstance(given, torch.Tensor):
            given = aligned(given.contiguous())
        arguments[parameter.name] = given
    kernel(spec, cores).launch(*arguments.values())
    return {one.name: arguments[one.name] for one in parameters if one.role in ("out", "inout")}


def _value(extent: Extent, extents: Mapping[str, int]) -> int:
    if isinstance(extent, int):
        return extent
    formula = formula_of(extent)
    return formula.value(extents[formula.symbol]) if formula else extents[extent]


@dataclass
class Rank:
    """What one card holds: its tokens, and what the steps leave in its memory."""

    number: int
    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor
    x_scales: torch.Tensor | None = None
    biases: Tensors = field(default_factory=dict)
    layout: Tensors = field(default_factory=dict)
    send: torch.Tensor | None = None
    sums: Tensors = field(default_factory=dict)
    received: Tensors = field(default_factory=dict)
    results: torch.Tensor | None = None
    out: torch.Tensor | None = None


@dataclass(frozen=True)
class Group:
    """Ranks of one topology with the experts' weights: up and gate, then down, [experts, n, k] each.

    ``per_rank`` says whether a rank adds up its own rows of a token before it sends them. ``dtype`` e4m3
    sends tokens with a scale for 32 values; ``first_scales`` then go with the first weights.
    """

    topology: ExpertParallelTopology
    first: torch.Tensor
    second: torch.Tensor
    cores: int = 4
    per_rank: bool = False
    biases: int = 0
    dtype: PayloadDtype = "bf16"
    first_scales: torch.Tensor | None = None

    @property
    def hidden(self) -> int:
        return int(self.first.shape[2])

    @property
    def intermediate(self) -> int:
        return int(self.second.shape[2])

    @property
    def scale_packs(self) -> int:
        return -(-self.hidden // 64) if self.dtype == "e4m3" else 0

    def own_experts(self, rank: Rank) -> slice:
        owned = self.topology.experts_per_rank
        return slice(rank.number * owned, (rank.number + 1) * owned)

    def dispatch(self, ranks: list[Rank], *, cached: bool = False) -> None:
        """Every rank packs; records and counts travel; every rank unpacks. ``cached`` keeps the layout."""
        for rank in ranks:
            if not cached:
                given = {"topk_idx": rank.topk_idx, "rank": rank.number}
                rank.layout = launched(EpLayoutSpec(topology=self.topology), self.cores, given)
            rank.send = self._packed(rank, cached)
        for rank in ranks:
            recv = self._delivered(ranks, rank)
            if not cached:
                counted = {
                    "recv_tokens_per_rank": torch.stack(
                        [one.layout["num_tokens_per_rank"][rank.number] for one in ranks]
                    ),
                    "recv_tokens_per_expert": torch.stack(
                        [one.layout["num_tokens_per_expert"][self.own_experts(rank)] for one in ranks]
                    ),
                }
                rank.sums = launched(EpPrefixSpec(topology=self.topology), self.cores, counted)
            self._unpack(rank, recv, cached)

    def _packed(self, rank: Rank, cached: bool) -> torch.Tensor:
        spec = EpPackSpec(
            topology=self.topology,
            hidden=self.hidden,
            dtype=self.dtype,
            scale_packs=self.scale_packs,
            cached=cached,
        )
        given: dict[str, Any] = {
            "x": rank.x,
            "topk_idx": rank.topk_idx,
            "topk_weights": rank.topk_weights,
            "dst_slot": rank.layout["dst_slot"],
            "rank": rank.number,
        }
        if rank.x_scales is not None:
            given["x_scales"] = rank.x_scales
        return launched(spec, self.cores, given)["send"]

    def _delivered(self, ranks: list[Rank], rank: Rank) -> torch.Tensor:
        """What the network does: the used slots for this rank, from everybody."""
        assert rank.send is not None
        recv = torch.full_like(rank.send, -1)
        for sender in ranks:
            assert sender.send is not None
            count = int(sender.layout["num_tokens_per_rank"][rank.number])
            recv[sender.number, :count] = sender.send[rank.number, :count]
        return recv

    def _unpack(self, rank: Rank, recv: torch.Tensor, cached: bool) -> None:
        spec = EpExpandSpec(
            topology=self.topology,
            hidden=self.hidden,
            dtype=self.dtype,
            scale_packs=self.scale_packs,
            cached=cached,
            zero_padding=True,
        )
        ends = rank.sums["psum_num_recv_tokens_per_expert"]
        alignment = self.topology.expert_alignment
        given: dict[str, Any] = {
            "recv": recv,
            "psum_num_recv_tokens_per_rank": rank.sums["psum_num_recv_tokens_per_rank"],
            "psum_num_recv_tokens_per_expert": ends,
        }
        given |= (
            {"recv_src_metadata": rank.received["recv_src_metadata"]} if cached else {"rank": rank.number}
        )
        sizes = {
            "received": int(rank.sums["psum_num_recv_tokens_per_rank"][-1]),
            "expanded": -(-int(ends[-1]) // alignment) * alignment,
        }
        rank.received |= launched(spec, self.cores, given, sizes)

    def run_experts(self, rank: Rank) -> None:
        """Both products of this rank's experts, and the activation between them, on its rows."""
        own, ends = self.own_experts(rank), rank.sums["psum_num_recv_tokens_per_expert"]
        rows = len(rank.received["recv_x"])
        owned, inner = self.topology.experts_per_rank, self.intermediate
        first: dict[str, Any] = {
            "a": rank.received["recv_x"],
            "b": self.first[own],
            "grouped_layout": ends,
            "d": torch.zeros((rows, 2 * inner), dtype=torch.bfloat16),
        }
        spec = GroupedGemmSpec(groups=owned, n=2 * inner, k=self.hidden)
        if self.dtype == "e4m3":
            assert self.first_scales is not None
            spec = GroupedGemmSpec(groups=owned, n=2 * inner, k=self.hidden, dtype_a="e4m3", dtype_b="e4m3")
            first["sfa"] = self._scales_by_column(rank.received["recv_x_scales"])
            first["sfb"] = self.first_scales[own]
        gates = launched(spec, self.cores, first)["d"]
        activation = SwigluSpec(
            hidden=inner, weights=True, experts=owned, token_alignment=self.topology.expert_alignment
        )
        activated = launched(
            activation,
            self.cores,
            {"x": gates, "weights": rank.received["recv_topk_weights"], "expert_ends": ends},
        )["y"]
        second = {
            "a": activated,
            "b": self.second[own],
            "grouped_layout": ends,
            "d": torch.zeros((rows, self.hidden), dtype=torch.bfloat16),
        }
        spec = GroupedGemmSpec(groups=owned, n=self.hidden, k=inner)
        rank.results = launched(spec, self.cores, second)["d"]

    def _scales_by_column(self, scales: torch.Tensor) -> torch.Tensor:
        """The same pairs with the rows innermost, as the block-scaled products take them."""
        spec = ScaleLayoutSpec(k=self.hidden, source="e8m0x2", major="k")
        return launched(spec, self.cores, {"scales": scales})["pairs"]

    def combine(self, ranks: list[Rank]) -> None:
        """Rows travel back to the choices they belong to; every rank adds up those of its tokens."""
        topk = self.topology.topk
        returned = [
            torch.full((len(rank.x), topk, self.hidden), torch.nan, dtype=torch.bfloat16) for rank in ranks
        ]
        for rank in ranks:
            self._send_back(rank, returned)
        spec = EpCombineSpec(
            topology=self.topology,
            hidden=self.hidden,
            biases=self.biases,
            per_rank="sent" if self.per_rank else "none",
        )
        for rank, y in zip(ranks, returned, strict=True):
            given = {"y": y, "topk_idx": rank.topk_idx, **rank.biases}
            rank.out = launched(spec, self.cores, given)["out"]

    def _send_back(self, rank: Rank, returned: list[torch.Tensor]) -> None:
        """What the network does: row of choice k, or their sum at the last one, to the token's own rank."""
        assert rank.results is not None
        metadata, topk = rank.received["recv_src_metadata"], self.topology.topk
        places = metadata[:, :topk].contiguous()
        sums = None
        if self.per_rank:
            spec = ReduceFusedSpec(hidden=self.hidden, topk=topk, weights=False)
            sums = launched(spec, self.cores, {"x": rank.results, "token_topk_to_pos": places})["y"]
        for i, (*rows, source, last) in enumerate(metadata.tolist()):
            owner, token = divmod(source, self.topology.max_tokens_per_rank)
            for k, row in enumerate(rows):
                if sums is not None and k == last:
                    returned[owner][token, k] = sums[i]
                elif sums is None and row >= 0:
                    returned[owner][token, k] = rank.results[row]
