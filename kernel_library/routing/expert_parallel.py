"""Expert parallelism: how experts lie on the ranks of a group, and what one token's record looks like.

Rank r owns the experts from ``r * experts_per_rank`` on. A record is what travels between two ranks for one
token: its payload, the scales of an fp8 payload, the token's experts and weights, and where it came from.
Records are made, read and unpacked here; the network that moves them is the caller's.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from kaas.kernel_library.routing.index_batches import BLOCK_BYTES, INDEX_BYTES, index_pitch
from kaas.kernel_library.spec import DTYPE_BYTES, require_int, require_one_of, shown, within
from kaas.proto.errors import InvalidSpec

EXPERT_PARALLEL_SOURCES = (
    "kaas.kernel_library.routing.expert_parallel",
    "kaas.kernel_library.routing.index_batches",
)
"""For ``Family.sources`` of a family that uses this module."""

MAX_RANKS = 512
MAX_EXPERTS = 4096
MAX_EXPERTS_PER_RANK = 512
MAX_TOPK = 32
MAX_TOKENS = 2**24 - 1
"""Tokens of all ranks together, so that every index of a token is exact in 24 bits."""
MAX_ALIGNMENT = 65536
MAX_GROUP_CARDS = 128
"""Cards behind one stage of switches."""

PayloadDtype = Literal["bf16", "e4m3"]
Payload = Annotated[int, within(32, 65536, multiple_of=32)]
ScalePacks = Annotated[int, within(0, 4096)]


class ExpertParallelTopology(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A group of ranks and the experts on them; one value for all kernels of a dispatch and its combine.

    ``experts`` are those of all ranks together. A rank sends at most ``max_tokens_per_rank`` tokens, which is
    how many record slots every rank keeps for every other. Rows of an expert start at multiples of
    ``expert_alignment``. ``nodes`` hosts carry equally many ranks each; ``group_cards`` is the size of a
    super-node group, inside which one stage of switches connects all cards. The last two decide which network
    a record takes, not what a kernel does.

    Raises :class:`InvalidSpec` naming the field as ``topology.<field>``, and its legal values.
    """

    ranks: Annotated[int, within(1, MAX_RANKS)]
    experts: Annotated[int, within(1, MAX_EXPERTS)]
    topk: Annotated[int, within(1, MAX_TOPK)]
    max_tokens_per_rank: Annotated[int, within(1, MAX_TOKENS)]
    expert_alignment: Annotated[int, within(1, MAX_ALIGNMENT)] = 256
    nodes: Annotated[int, within(1, MAX_RANKS)] = 1
    group_cards: Annotated[int, within(1, MAX_GROUP_CARDS)] = MAX_GROUP_CARDS

    def __post_init__(self) -> None:
        require_int(self.ranks, "topology.ranks", 1, MAX_RANKS)
        _require(self.ranks == 1 or self.ranks % 2 == 0, "ranks", self.ranks, "1 or an even number")
        require_int(self.experts, "topology.experts", 1, MAX_EXPERTS, multiple_of=self.ranks)
        _require(
            self.experts <= self.ranks * MAX_EXPERTS_PER_RANK,
            "experts",
            self.experts,
            f"at most {MAX_EXPERTS_PER_RANK} for each of the {self.ranks} ranks",
        )
        require_int(self.topk, "topology.topk", 1, min(MAX_TOPK, self.experts))
        require_int(self.max_tokens_per_rank, "topology.max_tokens_per_rank", 1, MAX_TOKENS // self.ranks)
        require_int(self.expert_alignment, "topology.expert_alignment", 1, MAX_ALIGNMENT)
        _require(
            self.expert_alignment & (self.expert_alignment - 1) == 0,
            "expert_alignment",
            self.expert_alignment,
            f"a power of two up to {MAX_ALIGNMENT}",
        )
        require_int(self.nodes, "topology.nodes", 1, self.ranks)
        _require(self.ranks % self.nodes == 0, "nodes", self.nodes, f"a divisor of the {self.ranks} ranks")
        require_int(self.group_cards, "topology.group_cards", 1, MAX_GROUP_CARDS)
        whole_groups = self.ranks % self.group_cards == 0 and self.group_cards % self.ranks_per_node == 0
        _require(
            self.ranks <= self.group_cards or whole_groups,
            "group_cards",
            self.group_cards,
            f"at least the {self.ranks} ranks, or a divisor of them that is a multiple of the "
            f"{self.ranks_per_node} ranks of a node",
        )

    @property
    def experts_per_rank(self) -> int:
        """Experts that each rank owns."""
        return self.experts // self.ranks

    @property
    def ranks_per_node(self) -> int:
        """Ranks of one host."""
        return self.ranks // self.nodes

    @property
    def groups(self) -> int:
        """Super-node groups that the ranks lie in: 1, or records cross the second stage of switches."""
        return math.ceil(self.ranks / self.group_cards)

    @property
    def slots(self) -> int:
        """Record slots of a rank's send or receive buffer."""
        return self.ranks * self.max_tokens_per_rank

    @property
    def max_expanded(self) -> int:
        """Rows by expert that a rank may receive at most, padding included."""
        rows = self.slots * min(self.topk, self.experts_per_rank)
        padding = self.experts_per_rank * (self.expert_alignment - 1)
        return -(-(rows + padding) // self.expert_alignment) * self.expert_alignment


def _require(holds: bool, field: str, value: Any, legal: str) -> None:
    if not holds:
        place = f"topology.{field}"
        raise InvalidSpec(f"{place} is {shown(value)}; legal: {legal}", field=place, legal=legal)


def require_topology(value: Any) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is an :class:`ExpertParallelTopology`."""
    if not isinstance(value, ExpertParallelTopology):
        legal = "an ExpertParallelTopology(ranks=..., experts=..., topk=..., max_tokens_per_rank=...)"
        raise InvalidSpec(f"topology is {shown(value)}; legal: {legal}", field="topology", legal=legal)


def require_payload(hidden: Any, dtype: Any, scale_packs: Any) -> None:
    """Raise :class:`InvalidSpec` unless the fields of a record's payload go together."""
    require_int(hidden, "hidden", 32, 65536, multiple_of=32)
    require_one_of(dtype, "dtype", ("bf16", "e4m3"))
    # From none at all up to one 16-bit word for every 16 values, which is an fp32 for every 32.
    require_int(scale_packs, "scale_packs", 0, hidden // 16 if dtype == "e4m3" else 0)


class RecordLayout(NamedTuple):
    """Where the parts of a record lie, in 32-bit words; every part starts at a 32-byte block.

    ``scales``, ``experts``, ``weights`` and ``source`` are first words, -1 for a part that is not there. The
    payload comes first. ``meta`` is where the parts behind the scales start, ``words`` the record's size.
    """

    payload_words: int
    scales: int
    scale_packs: int
    meta: int
    experts: int
    weights: int
    source: int
    words: int

    @property
    def meta_words(self) -> int:
        """Words of experts, weights and source together."""
        return self.words - self.meta


def record_layout(
    *, hidden: int, dtype: str, scale_packs: int, topk: int, weights: bool, cached: bool
) -> RecordLayout:
    """The layout of a record; a ``cached`` one names neither experts nor source."""
    block = BLOCK_BYTES // INDEX_BYTES
    payload = hidden * DTYPE_BYTES[dtype] // INDEX_BYTES
    scales = payload if scale_packs else -1
    meta = payload + -(-scale_packs * DTYPE_BYTES["e8m0x2"] // BLOCK_BYTES) * block
    words, places = meta, {"experts": -1, "weights": -1, "source": -1}
    for name, taken, size in (
        ("experts", not cached, index_pitch(topk)),
        ("weights", weights, index_pitch(topk)),
        ("source", not cached, block),
    ):
        if taken:
            places[name], words = words, words + size
    return RecordLayout(
        payload_words=payload, scales=scales, scale_packs=scale_packs, meta=meta, words=words, **places
    )
