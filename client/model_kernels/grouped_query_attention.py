"""Attention in which groups of query heads share a head of keys and values: Llama, Mistral, Qwen3."""

from __future__ import annotations

from kaas.client.model_kernels.deployment import Deployment
from kaas.client.model_kernels.model_config import ModelConfig
from kaas.client.model_kernels.products import Step
from kaas.client.model_kernels.wish_list import Layers
from kaas.kernel_library.families.mla_prefill import MlaPrefillSpec
from kaas.proto.errors import InvalidConfig, InvalidRequest

HEAD_WIDTH = 128
"""The one width of values that the dense attention family has."""


def head_width(config: ModelConfig) -> int:
    """``head_dim``, or what the heads leave of the hidden size where the configuration has none."""
    if config.has("head_dim"):
        return config.number("head_dim")
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
    if hidden % heads:
        raise InvalidConfig(
            f"{config.source}: head_dim is missing, and hidden_size {hidden} is no multiple of "
            f"num_attention_heads {heads}",
            field="head_dim",
        )
    return hidden // heads


def key_heads(config: ModelConfig, deployment: Deployment) -> int:
    """Heads of keys and values on a rank: its share, or one of which several ranks hold a copy."""
    heads = config.number("num_key_value_heads")
    if heads % deployment.tp and deployment.tp % heads:
        legal = [tp for tp in range(1, heads + 1) if heads % tp == 0]
        raise InvalidRequest(
            f"num_key_value_heads is {heads}, which tp {deployment.tp} neither divides nor is a multiple of",
            field="tp",
            legal=f"{', '.join(map(str, legal))}, or a multiple of {heads}",
        )
    return max(1, heads // deployment.tp)


def grouped_query_attention(step: Step, layers: Layers, config: ModelConfig, *, head_norms: bool) -> None:
    """One layer's attention; ``head_norms`` says that queries and keys are normalised head by head."""
    hidden, width = config.number("hidden_size"), head_width(config)
    heads = step.deployment.share("num_attention_heads", config.number("num_attention_heads"))
    keys = key_heads(config, step.deployment)
    if config.flag("attention_bias", default=False):
        step.wishes.lacks(layers, "attention projections", "a bias", "no product adds one")
    if step.deployment.fused_qkv:
        step.product(layers, "attention.qkv_proj", n=(heads + 2 * keys) * width, k=hidden)
    else:
        for name, count in (("q_proj", heads), ("k_proj", keys), ("v_proj", keys)):
            is_cast = name != "q_proj"
            step.product(layers, f"attention.{name}", n=count * width, k=hidden, is_cast=is_cast)
    for name, count in (("q", heads), ("k", keys)):
        if head_norms:
            eps = config.fraction("rms_norm_eps")
            step.norm(layers, f"attention.{name}_norm", width=width, eps=eps, each=count)
        step.rope(
            layers,
            f"attention.{name}_rope",
            heads=count,
            width=width,
            rotary=width,
            interleaved=False,
        )
    _scores(step, layers, config, heads, keys, width)
    step.product(layers, "attention.o_proj", n=hidden, k=heads * width)


def _scores(step: Step, layers: Layers, config: ModelConfig, heads: int, keys: int, width: int) -> None:
    lacks = step.wishes.lacks
    if config.has("sliding_window") and config.flag("use_sliding_window", default=True):
        lacks(layers, "attention", "a sliding window", "mla_prefill sees all keys before a query")
        return
    if step.decodes:
        lacks(
            layers,
            "attention of decoding",
            "grouped-query attention over a paged cache, and writing into its pages",
            "mla_decode reads latent caches, one head of keys for all",
        )
        return
    if width != HEAD_WIDTH:
        lacks(layers, "attention", f"heads of {width} values", f"mla_prefill has {HEAD_WIDTH}")
        return
    if step.deployment.plain_dtype != "bf16":
        lacks(layers, "attention", "fp16", "mla_prefill has bf16")
        return
    step.wishes.want(
        layers,
        "attention of prefill" if not step.trains else "attention",
        MlaPrefillSpec,
        heads=heads,
        group=heads // keys,
        d_qk=width,
        causal=True,
        tokens=step.tokens,
    )
    if step.trains:
        lacks(layers, "attention, gradients", "the backward pass of attention", "no family has it")
