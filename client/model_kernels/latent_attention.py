"""Multi-head latent attention, dense or sparse: DeepSeek V3 and V3.2.

Dense prefill widens the latent keys to heads; decoding, and sparse attention throughout, bring the queries
into the latent space instead, where all heads see the same keys.
"""

from __future__ import annotations

from typing import NamedTuple

from kaas.client.model_kernels.indexer import indexer_of_latent_attention, selection
from kaas.client.model_kernels.model_config import ModelConfig
from kaas.client.model_kernels.products import Step
from kaas.client.model_kernels.wish_list import Layers
from kaas.kernel_library.families.mla_decode import MlaDecodeSpec
from kaas.kernel_library.families.mla_prefill import MlaPrefillSpec
from kaas.kernel_library.families.mla_sparse_prefill import MlaSparsePrefillSpec

LATENT_WIDTH = 512
"""Values of a key that are its value, too, in every latent attention family."""
VALUE_WIDTH = 128
"""Of a head's values in dense prefill."""


class _Widths(NamedTuple):
    heads: int
    nope: int
    rope: int
    value: int
    latent: int


def latent_attention(step: Step, layers: Layers, config: ModelConfig, *, sparse: bool) -> None:
    """One layer's attention."""
    hidden, eps = config.number("hidden_size"), config.fraction("rms_norm_eps")
    heads = step.deployment.share("num_attention_heads", config.number("num_attention_heads"))
    widths = _Widths(
        heads,
        config.number("qk_nope_head_dim"),
        config.number("qk_rope_head_dim"),
        config.number("v_head_dim"),
        config.number("kv_lora_rank"),
    )
    if config.flag("attention_bias", default=False):
        step.wishes.lacks(layers, "attention projections", "a bias", "no product adds one")
    q_width = heads * (widths.nope + widths.rope)
    q_rank = config.optional_number("q_lora_rank")
    if q_rank is None:
        step.product(layers, "attention.q_proj", n=q_width, k=hidden)
    else:
        step.product(layers, "attention.q_a_proj", n=q_rank, k=hidden)
        step.norm(layers, "attention.q_a_layernorm", width=q_rank, eps=eps)
        step.product(layers, "attention.q_b_proj", n=q_width, k=q_rank)
    step.product(
        layers, "attention.kv_a_proj_with_mqa", n=widths.latent + widths.rope, k=hidden, is_cast=True
    )
    step.norm(layers, "attention.kv_a_layernorm", width=widths.latent, eps=eps)
    for name, count, width in (
        ("q", heads, widths.nope + widths.rope),
        ("k", 1, widths.latent + widths.rope),
    ):
        step.rope(
            layers, f"attention.{name}_rope", heads=count, width=width, rotary=widths.rope, interleaved=True
        )
    if sparse:
        indexer_of_latent_attention(step, layers, config)
        _latent_scores(step, layers, config, widths, sparse=True)
    elif step.decodes:
        _latent_scores(step, layers, config, widths, sparse=False)
    else:
        _dense_prefill(step, layers, widths)
    if step.trains:
        step.wishes.lacks(
            layers, "attention, gradients", "the backward pass of attention", "no family has it"
        )
    step.product(layers, "attention.o_proj", n=hidden, k=heads * widths.value)


def _dense_prefill(step: Step, layers: Layers, widths: _Widths) -> None:
    step.product(
        layers, "attention.kv_b_proj", n=widths.heads * (widths.nope + widths.value), k=widths.latent
    )
    if widths.value != VALUE_WIDTH:
        needs, reason = f"values of {widths.value} per head", f"mla_prefill has {VALUE_WIDTH}"
        step.wishes.lacks(layers, "attention", needs, reason)
        return
    if step.deployment.plain_dtype != "bf16":
        step.wishes.lacks(layers, "attention", "fp16", "mla_prefill has bf16")
        return
    step.wishes.want(
        layers,
        "attention" if step.trains else "attention of prefill",
        MlaPrefillSpec,
        heads=widths.heads,
        d_qk=widths.nope + widths.rope,
        causal=True,
        tokens=step.tokens,
    )


def _latent_scores(step: Step, layers: Layers, config: ModelConfig, widths: _Widths, *, sparse: bool) -> None:
    step.head_products(
        layers,
        "attention.q_absorbed",
        "bhd,hdr->bhr",
        h=widths.heads,
        d=widths.nope,
        r=widths.latent,
    )
    phase = "decoding" if step.decodes else step.workload.phase
    if widths.latent != LATENT_WIDTH:
        needs, reason = f"a latent width of {widths.latent}", f"the families have {LATENT_WIDTH}"
        step.wishes.lacks(layers, f"attention of {phase}", needs, reason)
    elif step.deployment.plain_dtype != "bf16":
        step.wishes.lacks(layers, f"attention of {phase}", "fp16", "latent attention has bf16")
    elif sparse:
        topk = config.number("index_topk")
        selection(step, layers, topk)
        # Decoding reads the bf16 cache as one list of keys, which its pages are.
        step.wishes.want(
            layers,
            f"attention of {phase}",
            MlaSparsePrefillSpec,
            heads=widths.heads,
            d_qk=widths.latent + widths.rope,
            topk=topk,
            topk_length=True,
            tokens=step.tokens,
        )
    else:
        step.wishes.want(
            layers,
            f"attention of {phase}",
            MlaDecodeSpec,
            heads=widths.heads,
            d_qk=widths.latent + widths.rope,
            s_q=step.queries,
            causal=step.queries > 1,
            page=step.deployment.page,
            requests=step.workload.requests,
        )
    step.head_products(
        layers,
        "attention.v_absorbed",
        "bhr,hdr->bhd",
        h=widths.heads,
        d=widths.value,
        r=widths.latent,
    )
