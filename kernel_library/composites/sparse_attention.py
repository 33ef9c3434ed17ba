"""sparse_attention: the indexer's scores, the keys it selects, and the attention over them."""

from __future__ import annotations

from typing import Annotated, Literal

from kaas.kernel_library.composite import Composite, CompositeSpec, Stage
from kaas.kernel_library.families.mla_sparse_prefill import MlaSparsePrefillSpec
from kaas.kernel_library.families.mqa_logits import MqaLogitsSpec
from kaas.kernel_library.families.topk_select import TopkSelectSpec
from kaas.kernel_library.spec import require_bool, require_int, require_one_of, within

NO_KEY = -1
"""What fills a list of keys that is not full; the attention passes it over."""
MAX_TOPK = 4096


class SparseAttentionSpec(
    CompositeSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="sparse_attention"
):
    """Sparse attention of many query tokens: mqa_logits, topk_select, mla_sparse_prefill.

    ``index_heads``, ``index_head_dim`` and ``index_dtype`` are the indexer's; each query attends to the
    ``topk`` keys (a multiple of 64 up to 4096) of its window that the indexer scores highest; ``heads``,
    ``d_qk`` and ``attn_sink`` are the attention's. The number of queries and of keys is dynamic.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    index_heads: Annotated[int, within(4, 64, multiple_of=4)] = 64
    index_head_dim: Literal[64, 128] = 128
    index_dtype: Literal["e4m3", "e2m1"] = "e4m3"
    topk: Annotated[int, within(64, MAX_TOPK, multiple_of=64)] = 2048
    heads: Literal[64, 128] = 64
    d_qk: Literal[512, 576] = 512
    attn_sink: bool = False

    def __post_init__(self) -> None:
        require_int(self.index_heads, "index_heads", 4, 64, multiple_of=4)
        require_one_of(self.index_head_dim, "index_head_dim", (64, 128))
        require_one_of(self.index_dtype, "index_dtype", ("e4m3", "e2m1"))
        require_int(self.topk, "topk", 64, MAX_TOPK, multiple_of=64)
        require_one_of(self.heads, "heads", (64, 128))
        require_one_of(self.d_qk, "d_qk", (512, 576))
        require_bool(self.attn_sink, "attn_sink")

    def stages(self) -> tuple[Stage, ...]:
        """Scores, selection, attention."""
        scores = Stage(
            name="scores",
            spec=MqaLogitsSpec(heads=self.index_heads, head_dim=self.index_head_dim, dtype=self.index_dtype),
            arguments={
                "q": "index_q",
                "q_scales": "index_q_scales",
                "kv": "index_k",
                "kv_scales": "index_k_scales",
                "weights": "index_weights",
                "ks": "first_key",
                "ke": "end_key",
                "out": "scores",
            },
        )
        # Scores begin at a window's first key, so the offset makes positions in the row positions of keys.
        # Ascending indices make the order of the attention's sums, and so its last bits, the same every time.
        selection = Stage(
            name="selection",
            spec=TopkSelectSpec(
                topk=self.topk, sorted_index=True, end=True, output_idx_offset=True, return_value=False
            ),
            arguments={
                "input": "scores",
                "end": "window",
                "output_idx_offset": "first_key",
                "output_idx": "indices",
            },
            constants={"idx_oob_fill_value": NO_KEY},
        )
        sink = {"attn_sink": "attn_sink"} if self.attn_sink else {}
        attention = Stage(
            name="attention",
            spec=MlaSparsePrefillSpec(
                heads=self.heads,
                d_qk=self.d_qk,
                topk=self.topk,
                attn_sink=self.attn_sink,
                topk_length=True,
            ),
            arguments={
                "q": "q",
                "kv": "kv",
                "indices": "indices",
                **sink,
                "topk_length": "window",
                "softmax_scale": "softmax_scale",
                "out": "out",
                "max_logits": "max_logits",
                "lse": "lse",
            },
        )
        return (scores, selection, attention)


COMPOSITE = Composite(
    name="sparse_attention",
    summary="sparse latent attention and its indexer: scores, each query's best keys, attention to them",
    spec_type=SparseAttentionSpec,
    computes="""
For each query i, with the keys of its window from `first_key[i]` to before `end_key[i]`:

1. the indexer scores every key of the window: see [mqa_logits](mqa_logits.md);
2. the `topk` keys with the largest scores are selected, all of them in a shorter window, of equal scores
   those that come first: see [topk_select](topk_select.md);
3. all heads attend to the selected keys: see [mla_sparse_prefill](mla_sparse_prefill.md).

`kaas.get_kernels` returns the three as one callable, which takes its arguments by name. A query whose scores
hold a NaN selects no key: its output is 0.
""",
    arguments={
        "index_q": "the indexer's queries",
        "index_q_scales": "their scales, pairs of 64 values, [head_dim / 64, tokens * heads]",
        "index_k": "the indexer's keys, one for each row of `kv`",
        "index_k_scales": "their scales",
        "index_weights": "a factor for each head's score",
        "first_key": "where each query's window begins",
        "end_key": "one past its last key",
        "scores": "space for the scores; as many columns as the widest window has keys, or more",
        "window": "`end_key - first_key`",
        "indices": "the selected keys, ascending; -1 behind them",
        "q": "queries",
        "kv": "keys, whose first 512 values are the values",
        "attn_sink": "a score per head that weighs no value",
        "softmax_scale": "what scores are multiplied with, usually d_qk ** -0.5",
        "out": "the attention's output",
        "max_logits": "the largest score of each head",
        "lse": "natural logarithm of each head's sum of exponentials",
    },
    examples=(SparseAttentionSpec(), SparseAttentionSpec(index_dtype="e2m1", heads=128, attn_sink=True)),
)
