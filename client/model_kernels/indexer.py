"""The indexer of sparse attention: scores of all keys for each query, and the best of them.

It is whole on every tensor-parallel rank: its scores are needed by all heads.
"""

from __future__ import annotations

from kaas.client.model_kernels.model_config import ModelConfig
from kaas.client.model_kernels.products import SCALES, Step
from kaas.client.model_kernels.wish_list import Layers
from kaas.kernel_library.families.cast import CastSpec
from kaas.kernel_library.families.mqa_logits import MqaLogitsSpec
from kaas.kernel_library.families.paged_mqa_logits import PagedMqaLogitsSpec
from kaas.kernel_library.families.paged_mqa_metadata import PagedMqaMetadataSpec
from kaas.kernel_library.families.topk_select import TopkSelectSpec


def indexer_of_latent_attention(step: Step, layers: Layers, config: ModelConfig) -> None:
    """DeepSeek V3.2's: keys are a projection of their own, in fp8."""
    hidden = config.number("hidden_size")
    heads, width = config.number("index_n_heads"), config.number("index_head_dim")
    rotary = config.number("qk_rope_head_dim")
    step.product(layers, "indexer.wq_b", n=heads * width, k=config.number("q_lora_rank"), is_cast=True)
    step.product(layers, "indexer.wk", n=width, k=hidden, is_cast=True)
    step.wishes.lacks(
        layers, "indexer.k_norm", f"a layer norm of {width} values", "norms are root-mean-square"
    )
    step.product(layers, "indexer.weights_proj", n=heads, k=hidden, is_scaled=False)
    for name, count in (("q", heads), ("k", 1)):
        step.rope(
            layers,
            f"indexer.{name}_rope",
            heads=count,
            width=width,
            rotary=rotary,
            part="first",
            interleaved=False,
        )
    index_scores(step, layers, heads, width, "e4m3")


def index_scores(step: Step, layers: Layers, heads: int, width: int, dtype: str) -> None:
    """Queries and keys rotated and quantised, and the scores."""
    want, lacks = step.wishes.want, step.wishes.lacks
    lacks(layers, "indexer", "a Hadamard transform of queries and keys", "no family has it")
    for name, count in (("q", heads), ("k", 1)):
        want(
            layers,
            f"indexer.{name} cast",
            CastSpec,
            hidden=width,
            fmt=dtype,
            tokens=step.workload.rows(count),
            **SCALES,
        )
    if not step.decodes:
        want(
            layers,
            "indexer scores",
            MqaLogitsSpec,
            heads=heads,
            head_dim=width,
            dtype=dtype,
            tokens=step.tokens,
        )
        return
    lacks(layers, "indexer", "keys written into pages", "no family lays values and scales out by pages")
    rows = {"heads": heads, "next_n": step.queries, "tokens": step.tokens}
    want(layers, "indexer schedule", PagedMqaMetadataSpec, **rows)
    want(
        layers,
        "indexer scores of decoding",
        PagedMqaLogitsSpec,
        head_dim=width,
        dtype=dtype,
        page_size=step.deployment.page,
        **rows,
    )


def selection(step: Step, layers: Layers, topk: int) -> None:
    """The keys with the best scores, as the sparse_attention composite selects them."""
    step.wishes.want(
        layers,
        "indexer selection",
        TopkSelectSpec,
        topk=topk,
        sorted_index=True,
        end=True,
        output_idx_offset=True,
        return_value=False,
        rows=step.tokens,
    )
