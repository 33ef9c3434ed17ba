"""How a model is spread over ranks and what runs on it: all that decides shapes beside the model itself."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from kaas.proto.errors import InvalidRequest

Phase = Literal["prefill", "decode", "training"]
Tokens = int | Literal["dynamic"]
MAX_RANKS = 1024
PAGES = (64, 128)


class Workload(NamedTuple):
    """What one step does: ``tokens`` rows pass through a rank, of ``requests`` sequences."""

    phase: Phase
    tokens: Tokens = "dynamic"
    requests: Tokens = "dynamic"

    def rows(self, each: int = 1) -> Tokens:
        """``tokens`` times ``each``."""
        return self.tokens if self.tokens == "dynamic" else self.tokens * each


Dtype = Literal["bf16", "fp16", "fp8"]
ExpertDtype = Literal["bf16", "fp16", "fp8", "fp4"]


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks, number formats and steps.

    ``tp`` ranks share attention, dense layers and vocabulary; ``ep`` ranks share the experts, each whole
    (with ``ep`` 1, ``tp`` ranks share each expert); ``pp`` stages share the layers, of which ``stage`` is one
    and ``None`` all. ``dtype`` is of products, ``expert_dtype`` of experts' weights. ``context`` is the
    longest sequence. ``mtp`` adds the modules that predict further tokens.

    Raises :class:`InvalidRequest` naming the field and its legal values.
    """

    tp: int = 1
    ep: int = 1
    pp: int = 1
    stage: int | None = None
    dtype: Dtype = "bf16"
    expert_dtype: ExpertDtype = "bf16"
    tokens: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    max_tokens_per_rank: int | None = None
    context: int | None = None
    page: int = 64
    fused_qkv: bool = True
    mtp: bool = False
    train: bool = False

    def __post_init__(self) -> None:
        for field in ("tp", "ep", "pp"):
            _require(field, getattr(self, field), 1, MAX_RANKS)
        if self.stage is not None:
            _require("stage", self.stage, 0, self.pp - 1)
        for field in ("tokens", "batch_sizes"):
            for value in getattr(self, field):
                _require(field, value, 1, 2**24 - 1)
        for field in ("max_tokens_per_rank", "context"):
            if getattr(self, field) is not None:
                _require(field, getattr(self, field), 1, 2**24 - 1)
        if self.page not in PAGES:
            raise InvalidRequest(f"page is {self.page}", field="page", legal=list(PAGES))
        if self.train and self.batch_sizes:
            message = "batch sizes are of decoding, and a training step has none; --tokens says what it has"
            raise InvalidRequest(message, field="batch_sizes", legal="none with --train")
        low_precision = self.dtype == "fp8"
        legal = ["fp8", "fp4"] if low_precision else [self.dtype]
        if self.expert_dtype not in legal:
            raise InvalidRequest(
                f"expert dtype is {self.expert_dtype}, which does not go with dtype {self.dtype}",
                field="expert_dtype",
                legal=legal,
            )
        if self.ep > 1 and self.max_tokens_per_rank is None and not self.tokens:
            raise InvalidRequest(
                f"ep is {self.ep}, and how many tokens a rank sends at most is not said",
                field="max_tokens_per_rank",
                legal="--max-tokens-per-rank N, or --tokens",
            )

    @property
    def is_scaled(self) -> bool:
        """Whether products take block-scaled operands."""
        return self.dtype == "fp8"

    @property
    def plain_dtype(self) -> Literal["bf16", "fp16"]:
        """Of activations, and of products that stay unscaled."""
        return "fp16" if self.dtype == "fp16" else "bf16"

    def slots(self, queries: int = 1) -> int:
        """Records that a rank sends to another at most.

        Raises :class:`InvalidRequest` if a step has more tokens than were said.
        """
        sizes = [step.tokens for step in self.workloads(queries) if step.tokens != "dynamic"]
        needed = max(sizes, default=1)
        if self.max_tokens_per_rank is None:
            return needed
        if self.max_tokens_per_rank < needed:
            raise InvalidRequest(
                f"max_tokens_per_rank is {self.max_tokens_per_rank}, but a step has {needed} tokens",
                field="max_tokens_per_rank",
                legal=f"from {needed}",
            )
        return self.max_tokens_per_rank

    def workloads(self, queries: int = 1) -> tuple[Workload, ...]:
        """The steps; one whose size is not said is dynamic. A decoding request has ``queries`` tokens."""
        if self.train:
            return tuple(Workload("training", tokens) for tokens in self.tokens) or (Workload("training"),)
        prefill = tuple(Workload("prefill", tokens) for tokens in self.tokens)
        decode = tuple(Workload("decode", size * queries, size) for size in self.batch_sizes)
        return (prefill or (Workload("prefill"),)) + (decode or (Workload("decode"),))

    def share(self, field: str, value: int, ranks: str = "tp") -> int:
        """A rank's part of ``value``. Raises :class:`InvalidRequest` with the numbers if it is not whole."""
        count: int = getattr(self, ranks)
        if value % count:
            legal = [rank for rank in range(1, min(value, MAX_RANKS) + 1) if value % rank == 0]
            choices = ", ".join(map(str, legal))
            raise InvalidRequest(
                f"{field} is {value}, which {ranks} {count} does not divide; legal: {choices}",
                field=ranks,
                legal=legal,
            )
        return value // count

    def layers(self, count: int) -> range:
        """The layers of the stage, or all. Raises :class:`InvalidRequest` if stages are not equally long."""
        if self.pp > count:
            message = f"num_hidden_layers is {count}, fewer than pp {self.pp}"
            raise InvalidRequest(message, field="pp", legal=f"at most {count}")
        if self.stage is None:
            return range(count)
        each = self.share("num_hidden_layers", count, "pp")
        return range(self.stage * each, (self.stage + 1) * each)


def _require(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        legal = f"{low} to {high}"
        raise InvalidRequest(f"{field} is {value}; legal: {legal}", field=field, legal=legal)
