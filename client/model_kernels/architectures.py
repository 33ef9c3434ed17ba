"""Architectures whose kernels are known, by the class name in a model's configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from kaas.client.model_kernels.compressed_attention import compressed_attention
from kaas.client.model_kernels.deployment import Tokens
from kaas.client.model_kernels.experts import ExpertFacts, mixture_of_experts
from kaas.client.model_kernels.grouped_query_attention import grouped_query_attention
from kaas.client.model_kernels.latent_attention import latent_attention
from kaas.client.model_kernels.model_config import ModelConfig
from kaas.client.model_kernels.products import Step
from kaas.client.model_kernels.residual_streams import stream_mixing, streams_begin, streams_end
from kaas.client.model_kernels.wish_list import Layers, layers_named
from kaas.proto.errors import InvalidConfig

Attention = Callable[[Step, Layers], None]
Architecture = Callable[[Step, ModelConfig, range], None]


def further_tokens(config: ModelConfig, wanted: bool) -> int:
    """Modules that predict further tokens, if they are wanted."""
    return config.number("num_nextn_predict_layers") if wanted else 0


def _dense(step: Step, config: ModelConfig, layers: range, *, head_norms: bool) -> None:
    _ends(step, config, layers, "before")
    everything = layers_named(layers)
    _norms(step, config, layers)
    grouped_query_attention(step, everything, config, head_norms=head_norms)
    _dense_mlp(step, everything, config)
    _ends(step, config, layers, "after")


def _qwen3_moe(step: Step, config: ModelConfig, layers: range) -> None:
    every, dense_only = config.number("decoder_sparse_step"), config.numbers("mlp_only_layers")
    sparse = [layer for layer in layers if layer not in dense_only and (layer + 1) % every == 0]
    _ends(step, config, layers, "before")
    _norms(step, config, layers)
    grouped_query_attention(step, layers_named(layers), config, head_norms=True)
    for numbers, mlp in _split(layers, sparse):
        if mlp == "dense":
            _dense_mlp(step, layers_named(numbers), config)
        else:
            mixture_of_experts(step, layers_named(numbers), _qwen3_experts(config))
    _ends(step, config, layers, "after")


def _deepseek_v3(step: Step, config: ModelConfig, layers: range, *, sparse_attention: bool) -> None:
    first, every = config.number("first_k_dense_replace", 0), config.number("moe_layer_freq", default=1)
    sparse = [layer for layer in layers if layer >= first and layer % every == 0]
    further = further_tokens(config, step.deployment.mtp)
    attention = partial(latent_attention, config=config, sparse=sparse_attention)
    _ends(step, config, layers, "before")
    _norms(step, config, layers)
    attention(step, layers_named(layers))
    for numbers, mlp in _split(layers, sparse):
        if mlp == "dense":
            _dense_mlp(step, layers_named(numbers), config)
        else:
            mixture_of_experts(step, layers_named(numbers), _deepseek_experts(config))
    _ends(step, config, layers, "after")
    if further and _is_last(config, layers):
        modules = Layers("further token prediction", further)
        hidden, eps = config.number("hidden_size"), config.fraction("rms_norm_eps")
        for name in ("enorm", "hnorm", "shared_head.norm"):
            step.norm(modules, name, width=hidden, eps=eps)
        step.product(modules, "eh_proj", n=hidden, k=2 * hidden)
        step.norm(modules, "input_layernorm", width=hidden, eps=eps)
        step.norm(modules, "post_attention_layernorm", width=hidden, eps=eps, residual=True)
        attention(step, modules)
        mixture_of_experts(step, modules, _deepseek_experts(config))
        _output_head(step, modules, config)


def _deepseek_v4(step: Step, config: ModelConfig, layers: range) -> None:
    total = config.number("num_hidden_layers")
    further = further_tokens(config, step.deployment.mtp)
    ratios = config.numbers("compress_ratios")
    if len(ratios) < total + further:
        raise InvalidConfig(
            f"{config.source}: compress_ratios has {len(ratios)} numbers for {total + further} layers",
            field="compress_ratios",
            legal="a number for each layer",
        )
    hidden, eps = config.number("hidden_size"), config.fraction("rms_norm_eps")
    by_token = config.number("num_hash_layers", 0, default=0)
    clamp = "swiglu_limit"
    _ends(step, config, layers, "before", streams=True)
    everything = layers_named(layers)
    for what, norm in (("attention", "attn_norm"), ("experts", "ffn_norm")):
        stream_mixing(step, everything, what, config)
        step.norm(everything, norm, width=hidden, eps=eps)
    for ratio in sorted({ratios[layer] for layer in layers}):
        alike = layers_named([layer for layer in layers if ratios[layer] == ratio])
        compressed_attention(step, alike, config, ratio=ratio)
    for by_hash in (True, False):
        numbers = [layer for layer in layers if (layer < by_token) == by_hash]
        mixture_of_experts(
            step, layers_named(numbers), _deepseek_experts(config, by_hash=by_hash, clamp=clamp)
        )
    _ends(step, config, layers, "after", streams=True)
    if further and _is_last(config, layers):
        modules = Layers("further token prediction", further)
        for name in ("enorm", "hnorm", "norm"):
            each = config.number("hc_mult") if name == "hnorm" else 1
            step.norm(modules, name, width=hidden, eps=eps, each=each)
        for name in ("e_proj", "h_proj"):
            each = config.number("hc_mult") if name == "h_proj" else 1
            wide = step._replace(workload=step.workload._replace(tokens=step.workload.rows(each)))
            wide.product(modules, name, n=hidden, k=hidden)
        for what, norm in (("attention", "attn_norm"), ("experts", "ffn_norm")):
            stream_mixing(step, modules, what, config)
            step.norm(modules, norm, width=hidden, eps=eps)
        for ratio in ratios[total : total + further]:
            compressed_attention(step, modules._replace(total=1), config, ratio=ratio)
        mixture_of_experts(step, modules, _deepseek_experts(config, clamp=clamp))
        streams_end(step, modules, config)
        _output_head(step, modules, config)


def _qwen3_experts(config: ModelConfig) -> ExpertFacts:
    if not config.flag("norm_topk_prob"):
        raise _unnormalised(config)
    return ExpertFacts(
        hidden=config.number("hidden_size"),
        experts=config.number("num_experts"),
        topk=config.number("num_experts_per_tok"),
        intermediate=config.number("moe_intermediate_size"),
        shared_intermediate=0,
        gate={"scoring": "softmax", "bias": False},
    )


def _deepseek_experts(config: ModelConfig, *, by_hash: bool = False, clamp: str = "") -> ExpertFacts:
    if not config.flag("norm_topk_prob"):
        raise _unnormalised(config)
    config.word("topk_method", ("noaux_tc",), default="noaux_tc")
    width = config.number("moe_intermediate_size")
    gate: dict[str, Any] = {
        "scoring": config.word("scoring_func", ("sigmoid", "sqrtsoftplus", "softmax")),
        "bias": not by_hash,
        "groups": config.number("n_group", default=1),
        "topk_groups": config.number("topk_group", default=1),
    }
    if by_hash:
        # The token's number says which experts; the scores only weigh them.
        gate |= {"fixed_routing": True, "unmapped": True}
    return ExpertFacts(
        hidden=config.number("hidden_size"),
        experts=config.number("n_routed_experts"),
        topk=config.number("num_experts_per_tok"),
        intermediate=width,
        shared_intermediate=config.number("n_shared_experts", 0, default=0) * width,
        gate=gate,
        clamp=config.fraction(clamp) if clamp and config.has(clamp) else None,
    )


def _unnormalised(config: ModelConfig) -> InvalidConfig:
    return InvalidConfig(
        f"{config.source}: norm_topk_prob is false; moe_gate normalises the weights of a token's experts",
        field="norm_topk_prob",
        legal=[True],
    )


def _dense_mlp(step: Step, layers: Layers, config: ModelConfig) -> None:
    if not layers.total:
        return
    if config.flag("mlp_bias", default=False):
        step.wishes.lacks(layers, "mlp projections", "a bias", "no product adds one")
    width = step.deployment.share("intermediate_size", config.number("intermediate_size"))
    step.gated_mlp(layers, "mlp", hidden=config.number("hidden_size"), intermediate=width)


def _norms(step: Step, config: ModelConfig, layers: range) -> None:
    """Both norms of every layer; the model's first one has no block before it whose output it would add."""
    width, eps = config.number("hidden_size"), config.fraction("rms_norm_eps")
    first = [layer for layer in layers if layer == 0]
    rest = [layer for layer in layers if layer > 0]
    step.norm(layers_named(first), "input_layernorm", width=width, eps=eps)
    step.norm(layers_named(rest), "input_layernorm", width=width, eps=eps, residual=True)
    step.norm(layers_named(layers), "post_attention_layernorm", width=width, eps=eps, residual=True)


def _ends(step: Step, config: ModelConfig, layers: range, place: str, *, streams: bool = False) -> None:
    """What lies before the first layer and after the last one, on the stages that have them."""
    if place == "before" and layers.start == 0:
        begin = Layers("embedding")
        step.wishes.lacks(begin, "lookup", "rows of a table by token", "no family has it")
        if streams:
            streams_begin(step, begin, config)
    if place == "after" and _is_last(config, layers):
        end = Layers("output")
        if streams:
            streams_end(step, end, config)
        width, eps = config.number("hidden_size"), config.fraction("rms_norm_eps")
        step.norm(end, "norm", width=width, eps=eps, residual=not streams)
        _output_head(step, end, config)
    if place == "after" and step.deployment.tp > 1:
        step.wishes.lacks(
            Layers("all layers"),
            "tensor parallelism",
            "sums over ranks",
            "collectives are the network runtime's part",
        )


def _output_head(step: Step, layers: Layers, config: ModelConfig) -> None:
    vocabulary = step.deployment.share("vocab_size", config.number("vocab_size"))
    # Prefill needs the last token of each sequence only, of which there may be any number.
    rows: Tokens = "dynamic" if step.workload.phase == "prefill" else step.tokens
    step.product(
        layers,
        "lm_head",
        n=vocabulary,
        k=config.number("hidden_size"),
        is_scaled=False,
        tokens=rows,
    )
    needs = "cross entropy and its gradient" if step.trains else "sampling of the next token"
    step.wishes.lacks(layers, "logits", needs, "no family has it")


def _is_last(config: ModelConfig, layers: range) -> bool:
    return layers.stop == config.number("num_hidden_layers")


def _split(layers: Sequence[int], sparse: Iterable[int]) -> list[tuple[list[int], str]]:
    chosen = set(sparse)
    kinds = (
        ([layer for layer in layers if layer not in chosen], "dense"),
        ([layer for layer in layers if layer in chosen], "sparse"),
    )
    return [(numbers, kind) for numbers, kind in kinds if numbers]


ARCHITECTURES: dict[str, Architecture] = {
    "DeepseekV3ForCausalLM": partial(_deepseek_v3, sparse_attention=False),
    "DeepseekV32ForCausalLM": partial(_deepseek_v3, sparse_attention=True),
    "DeepseekV4ForCausalLM": _deepseek_v4,
    "LlamaForCausalLM": partial(_dense, head_norms=False),
    "MistralForCausalLM": partial(_dense, head_norms=False),
    "Qwen3ForCausalLM": partial(_dense, head_norms=True),
    "Qwen3MoeForCausalLM": _qwen3_moe,
}


def architecture_of(config: ModelConfig) -> Architecture:
    """The one that a configuration names. Raises :class:`InvalidConfig` with those that are known."""
    name = config.architecture
    if name not in ARCHITECTURES:
        legal = sorted(ARCHITECTURES)
        raise InvalidConfig(
            f"{config.source}: architectures names {name[:80]}, whose kernels are not known; "
            f"legal: {', '.join(legal)}",
            field="architectures",
            legal=legal,
            source=config.source,
        )
    return ARCHITECTURES[name]
