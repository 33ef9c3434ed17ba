"""DeepSeek V4's attention: a window of keys beside compressed ones, all or those that an indexer selects.

Layers differ by their compression ratio: 0 has the window only, 4 selects compressed keys, another ratio sees
them all.
"""

from __future__ import annotations

from kaas.client.model_kernels.indexer import index_scores, selection
from kaas.client.model_kernels.model_config import ModelConfig
from kaas.client.model_kernels.products import Step
from kaas.client.model_kernels.wish_list import Layers
from kaas.kernel_library.families.kv_record_pack import KvRecordPackSpec
from kaas.kernel_library.families.mla_sparse_decode import MlaSparseDecodeSpec
from kaas.kernel_library.families.mla_sparse_prefill import MlaSparsePrefillSpec
from kaas.proto.errors import InvalidConfig

SELECTING_RATIO = 4
LIST_STEP = 64
"""Lists of keys are whole multiples of this long."""
KEY_WIDTH = 512


def compressed_attention(step: Step, layers: Layers, config: ModelConfig, *, ratio: int) -> None:
    """The attention of layers with one compression ratio."""
    hidden, eps = config.number("hidden_size"), config.fraction("rms_norm_eps")
    width, rotary = config.number("head_dim"), config.number("qk_rope_head_dim")
    q_rank, o_rank = config.number("q_lora_rank"), config.number("o_lora_rank")
    all_heads, all_groups = config.number("num_attention_heads"), config.number("o_groups")
    heads = step.deployment.share("num_attention_heads", all_heads)
    groups = step.deployment.share("o_groups", all_groups)
    if all_heads % all_groups:
        raise InvalidConfig(
            f"{config.source}: num_attention_heads {all_heads} is no multiple of o_groups {all_groups}",
            field="o_groups",
        )
    step.product(layers, "attention.wq_a", n=q_rank, k=hidden)
    step.norm(layers, "attention.q_norm", width=q_rank, eps=eps)
    step.product(layers, "attention.wq_b", n=heads * width, k=q_rank)
    step.norm(layers, "attention.q heads", width=width, eps=eps, weight=False, each=heads)
    step.product(layers, "attention.wkv", n=width, k=hidden, is_cast=True)
    step.norm(layers, "attention.kv_norm", width=width, eps=eps)
    for name, count, back in (("q", heads, False), ("kv", 1, False), ("output", heads, True)):
        step.rope(
            layers,
            f"attention.{name}_rope",
            heads=count,
            width=width,
            rotary=rotary,
            interleaved=True,
            inverse=back,
        )
    if ratio:
        _compressor(step, layers, "compressor", config, width, ratio)
    if ratio == SELECTING_RATIO:
        _indexer(step, layers, config, ratio)
    _scores(step, layers, config, heads, width, ratio)
    step.head_products(
        layers, "attention.wo_a", "bhr,hdr->bhd", h=groups, d=o_rank, r=all_heads * width // all_groups
    )
    step.product(layers, "attention.wo_b", n=hidden, k=groups * o_rank)


def _compressor(step: Step, layers: Layers, what: str, config: ModelConfig, width: int, ratio: int) -> None:
    overlap = 2 if ratio == SELECTING_RATIO else 1
    hidden, eps = config.number("hidden_size"), config.fraction("rms_norm_eps")
    # Values and gates in one product, in fp32 up to the pooling.
    step.product(layers, f"{what}.wkv_gate", n=2 * overlap * width, k=hidden, is_scaled=False, dtype_d="fp32")
    needs = f"a softmax over {overlap * ratio} tokens that weighs their values"
    step.wishes.lacks(layers, f"{what} pooling", needs, "no family has it")
    # A compressed key stands for several tokens, so that rows are not those of the step.
    free = step._replace(workload=step.workload._replace(tokens="dynamic"))
    free.norm(layers, f"{what}.norm", width=width, eps=eps)
    rotary = config.number("qk_rope_head_dim")
    free.rope(layers, f"{what}.rope", heads=1, width=width, rotary=rotary, interleaved=True)


def _indexer(step: Step, layers: Layers, config: ModelConfig, ratio: int) -> None:
    heads, width = config.number("index_n_heads"), config.number("index_head_dim")
    rotary = config.number("qk_rope_head_dim")
    step.product(layers, "indexer.wq_b", n=heads * width, k=config.number("q_lora_rank"), is_cast=True)
    step.product(layers, "indexer.weights_proj", n=heads, k=config.number("hidden_size"), is_scaled=False)
    step.rope(layers, "indexer.q_rope", heads=heads, width=width, rotary=rotary, interleaved=True)
    _compressor(step, layers, "indexer.compressor", config, width, ratio)
    index_scores(step, layers, heads, width, "e2m1")
    selection(step, layers, config.number("index_topk"))


def _scores(step: Step, layers: Layers, config: ModelConfig, heads: int, width: int, ratio: int) -> None:
    window = config.number("sliding_window")
    phase = "decoding" if step.decodes else step.workload.phase
    if width != KEY_WIDTH or step.deployment.plain_dtype != "bf16":
        needs = f"heads of {width} values in {step.deployment.plain_dtype}"
        step.wishes.lacks(layers, f"attention of {phase}", needs, f"sparse attention has {KEY_WIDTH} in bf16")
        return
    if ratio == SELECTING_RATIO:
        further = config.number("index_topk")
    elif ratio:
        longest = step.deployment.context or config.number("max_position_embeddings")
        further = -(-longest // ratio)
    else:
        further = 0
    window, further = (-(-count // LIST_STEP) * LIST_STEP for count in (window, further))
    if not step.trains:
        step.wishes.want(layers, "attention.window records", KvRecordPackSpec, tokens=step.tokens)
        if further:
            step.wishes.want(layers, "attention.compressed records", KvRecordPackSpec)
    if step.decodes:
        step.wishes.want(
            layers,
            "attention of decoding",
            MlaSparseDecodeSpec,
            heads=heads,
            s_q=step.queries,
            topk=window,
            extra="fp8" if further else "none",
            extra_topk=further,
            attn_sink=True,
            requests=step.workload.requests,
        )
        return
    step.wishes.want(
        layers,
        f"attention of {phase}",
        MlaSparsePrefillSpec,
        heads=heads,
        topk=window + further,
        attn_sink=True,
        tokens=step.tokens,
    )
    if step.trains:
        step.wishes.lacks(
            layers, "attention, gradients", "the backward pass of attention", "no family has it"
        )
